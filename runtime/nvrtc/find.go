package nvrtc

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrNotFound is the error of [Find] where no NVRTC is installed.
var ErrNotFound = errors.New("nvrtc: libnvrtc is not found; run `kgen toolchain install`, or set CUDA_HOME to a CUDA toolkit")

// Find returns the path of libnvrtc. path, when not empty, is the library
// itself or a folder with it and the only place looked at. Then come dirs in their
// order, the toolkits that CUDA_HOME and CUDA_PATH name, /usr/local/cuda and
// the folders of the system's loader.
func Find(path string, dirs ...string) (string, error) {
	if path != "" {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path, nil
		}
		if found := findIn(path); found != "" {
			return found, nil
		}
		return "", fmt.Errorf("nvrtc: no libnvrtc.so at %s", path)
	}
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if dir := os.Getenv(name); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	dirs = append(dirs, "/usr/local/cuda")
	dirs = append(dirs, loaderDirs()...)
	for _, dir := range dirs {
		if found := findIn(dir); found != "" {
			return found, nil
		}
	}
	return "", ErrNotFound
}

// findIn looks for libnvrtc in a folder that has a name, in the library folders of a toolkit
// there, and in those of wheels installed there or in a folder below.
func findIn(dir string) string {
	for _, sub := range []string{".", "lib64", "lib", "targets/*/lib", "nvidia/cu*/lib", "*/nvidia/cu*/lib"} {
		found, _ := fs.Glob(os.DirFS(dir), path.Join(sub, "libnvrtc.so*")) // the pattern is well formed
		if len(found) > 0 {
			return filepath.Join(dir, newest(found))
		}
	}
	return ""
}

// builtinsBeside returns the library of built-in functions of the same
// version in the same folder as libnvrtc, or nothing.
func builtinsBeside(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	want := version(path)
	dir := filepath.Dir(path)
	found, _ := fs.Glob(os.DirFS(dir), "libnvrtc-builtins.so*") // the pattern is well formed
	found = slices.DeleteFunc(found, func(name string) bool {
		has := version(name)
		n := min(len(has), len(want))
		return !slices.Equal(has[:n], want[:n])
	})
	if len(found) == 0 {
		return ""
	}
	return filepath.Join(dir, newest(found))
}

func newest(libraries []string) string {
	return slices.MaxFunc(libraries, func(a, b string) int {
		return cmp.Or(slices.Compare(version(a), version(b)), strings.Compare(a, b))
	})
}

// version is what stands after .so in a library's file name.
func version(path string) []int {
	_, suffix, _ := strings.Cut(filepath.Base(path), ".so.")
	var v []int
	for field := range strings.SplitSeq(suffix, ".") {
		if n, err := strconv.Atoi(field); err == nil {
			v = append(v, n)
		}
	}
	return v
}

// loaderDirs are the folders where the system's loader looks: LD_LIBRARY_PATH,
// the usual ones and those that ldconfig's files name.
func loaderDirs() []string {
	dirs := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	dirs = append(dirs, "/usr/lib64", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
	files, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf") // the pattern is well formed
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a file that can't be read names no folder
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
	}
	return dirs
}
