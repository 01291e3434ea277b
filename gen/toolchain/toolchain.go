// Package toolchain finds and installs NVIDIA's compilers.
package toolchain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/subprocess"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// Tools is the paths of the tools of this machine; empty where one is absent.
type Tools struct {
	NVRTC    string `json:"nvrtc"` // libnvrtc
	NVCC     string `json:"nvcc"`
	Nvdisasm string `json:"nvdisasm"` // a disassembler
}

// Find looks for each tool in dir, where [Install] put it, then in the
// toolkits that CUDA_HOME and CUDA_PATH name, in /usr/local/cuda, and in the
// system's folders. An empty dir is none.
func Find(dir string) Tools {
	library, err := nvrtc.Find("", dir)
	if err != nil {
		library = "" // nvrtc.ErrNotFound, for no path is given
	}
	return Tools{NVRTC: library, NVCC: program(dir, "nvcc"), Nvdisasm: program(dir, "nvdisasm")}
}

func program(dir, name string) string {
	found, _ := fs.Glob(os.DirFS(dir), "*/nvidia/cu*/bin/"+name) // the pattern is well formed
	slices.Reverse(found)
	for i := range found {
		found[i] = filepath.Join(dir, found[i])
	}
	for _, variable := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if home := os.Getenv(variable); home != "" {
			found = append(found, filepath.Join(home, "bin", name))
		}
	}
	found = append(found, filepath.Join("/usr/local/cuda/bin", name), name)
	for _, file := range found {
		if path, err := exec.LookPath(file); err == nil {
			return path
		}
	}
	return ""
}

// memorandum is a version that was found, and what the file was then.
type memorandum struct {
	Path     string
	Bytes    int64
	Modified time.Time
	Version  string
}

var versionPattern = regexp.MustCompile(`\bV([0-9]+\.[0-9]+\.[0-9]+)`)

// Version returns the full version of a tool that [Find] found, such as
// 13.0.88. To ask a tool takes up to a tenth of a second, so the answer is
// kept in the folder memo and holds until the tool's file changes; an
// empty memo keeps nothing.
func Version(ctx context.Context, path, memo string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("toolchain: %w", err)
	}
	want := memorandum{Path: path, Bytes: info.Size(), Modified: info.ModTime().UTC()}
	name := sha256.Sum256([]byte(path))
	file := filepath.Join(memo, hex.EncodeToString(name[:8])+".version")
	if memo != "" {
		if version, ok := recall(file, want); ok {
			return version, nil
		}
	}
	if want.Version, err = ask(ctx, path); err != nil {
		return "", err
	}
	if memo != "" {
		// Without the file the next call asks again, which is only slower; a folder that can't
		// be written is reported by the cache of cubins.
		_ = remember(file, want)
	}
	return want.Version, nil
}

func ask(ctx context.Context, path string) (string, error) {
	if strings.HasPrefix(filepath.Base(path), "libnvrtc.") {
		library, err := nvrtc.Open(path)
		if err != nil {
			return "", err
		}
		return library.Version(), nil
	}
	out, err := subprocess.Run(ctx, subprocess.Command{Path: path, Args: []string{"--version"}})
	if err != nil {
		return "", fmt.Errorf("toolchain: ask %s for its version: %w", path, err)
	}
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("toolchain: %s --version gives no version:\n%s", path, out)
	}
	return m[1], nil
}

func recall(file string, want memorandum) (string, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	var got memorandum
	if json.Unmarshal(data, &got) != nil || got.Version == "" {
		return "", false
	}
	want.Version = got.Version
	return got.Version, got == want
}

func remember(file string, m memorandum) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "version-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // does nothing after the rename
	if _, err := temp.Write(data); err != nil {
		temp.Close()
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), file)
}

// Disassemble returns the instructions of a cubin as nvdisasm, whose path is
// given, prints them.
func Disassemble(ctx context.Context, nvdisasm string, cubin []byte) (string, error) {
	file, err := os.CreateTemp("", "kgen-*.cubin")
	if err != nil {
		return "", fmt.Errorf("toolchain: nvdisasm needs a temporary file: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(cubin)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", fmt.Errorf("toolchain: write the cubin for nvdisasm: %w", err)
	}
	return subprocess.Run(ctx, subprocess.Command{Path: nvdisasm, Args: []string{"--print-code", file.Name()}})
}
