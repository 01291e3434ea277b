package toolchain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kgen-project/kgen/gen/subprocess"
	"github.com/kgen-project/kgen/runtime/filelock"
)

// component is what one folder of the toolchain has.
type component struct {
	folder   string   // its name has the versions, so that other versions stand beside it
	packages []string // names and versions of Python packages
	has      string   // pattern of a path that must be in the folder
}

const version = "13.0.88"

var (
	nvrtcComponent = component{
		folder:   "nvrtc-" + version,
		packages: []string{"nvidia-cuda-nvrtc==" + version},
		has:      "nvidia/cu*/lib/libnvrtc.so*",
	}
	// There is no disassembler of version 13.0; a later one reads its cubins.
	nvdisasmComponent = component{
		folder:   "nvdisasm-13.2.78",
		packages: []string{"nvidia-cuda-nvdisasm==13.2.78"},
		has:      "nvidia/cu*/bin/nvdisasm",
	}
	nvccComponent = component{
		folder: "nvcc-" + version,
		packages: []string{"nvidia-cuda-nvcc==" + version, "nvidia-cuda-crt==" + version,
			"nvidia-nvvm==" + version, "nvidia-cuda-runtime==13.0.96"},
		has: "nvidia/cu*/bin/nvcc",
	}
)

// InstallOptions says what [Install] installs and how.
type InstallOptions struct {
	NVCC   bool      // nvcc too
	Python string    // a Python 3 with pip; empty: python3
	Out    io.Writer // gets pip's messages; may be nil
}

// Install puts NVRTC, a disassembler and, where asked for, nvcc into dir, at
// versions that are fixed for this kgen. It leaves what is already there alone. Each
// tool appears whole or not at all, and of two installs at once one waits for the other.
func Install(ctx context.Context, dir string, o InstallOptions) error {
	components := []component{nvrtcComponent, nvdisasmComponent}
	if o.NVCC {
		components = append(components, nvccComponent)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("toolchain: make the folder to install in: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("toolchain: %w", err)
	}
	unlock, err := filelock.Lock(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return fmt.Errorf("toolchain: wait for another install: %w", err)
	}
	defer unlock()
	for _, c := range components {
		if _, err := os.Stat(filepath.Join(dir, c.folder)); err == nil {
			continue
		}
		if err := c.install(ctx, dir, o); err != nil {
			return err
		}
	}
	return nil
}

func (c component) install(ctx context.Context, dir string, o InstallOptions) (err error) {
	python, err := findPython(ctx, o.Python)
	if err != nil {
		return err
	}
	// The lock is held: what is there is of an install that was killed.
	temp := filepath.Join(dir, ".new")
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("toolchain: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	if _, err := subprocess.Run(ctx, subprocess.Command{
		Path: python,
		Args: append([]string{"-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps",
			"--only-binary=:all:", "--no-compile", "--target", temp}, c.packages...),
		// The first two do not go with --target; the third drops a warning that is not of use here.
		Env: append(os.Environ(), "PIP_USER=0", "PIP_REQUIRE_VIRTUALENV=0", "PIP_ROOT_USER_ACTION=ignore"),
		Out: o.Out,
	}); err != nil {
		return fmt.Errorf("toolchain: install %s: %w", c.folder, err)
	}
	if found, _ := fs.Glob(os.DirFS(temp), c.has); len(found) == 0 { // the pattern is well formed
		return fmt.Errorf("toolchain: install %s: pip ended well, but there is no %s in %v", c.folder, c.has, c.packages)
	}
	if err := os.Rename(temp, filepath.Join(dir, c.folder)); err != nil {
		return fmt.Errorf("toolchain: install %s: %w", c.folder, err)
	}
	return nil
}

func findPython(ctx context.Context, name string) (string, error) {
	if name == "" {
		name = "python3"
	}
	python, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("toolchain: the compilers come as Python packages, and %s is not found: install Python 3 with pip, or set CUDA_HOME to a CUDA toolkit: %w", name, err)
	}
	if _, err := subprocess.Run(ctx, subprocess.Command{Path: python, Args: []string{"-m", "pip", "--version"}}); err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		return "", fmt.Errorf("toolchain: the compilers come as Python packages, and %s has no pip that works: install pip for it: %w", python, err)
	}
	return python, nil
}
