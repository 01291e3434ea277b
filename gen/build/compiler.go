package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/kgen-project/kgen/gen/subprocess"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// Compiler turns a source into a cubin. It is safe for concurrent use.
type Compiler interface {
	ID() string      // nvrtc or nvcc
	Version() string // such as 13.0.88
	// Compile compiles with [Flags]. Its error has the compiler's whole message.
	Compile(ctx context.Context, s Source) (cubincache.Entry, error)
	// PTX returns the source's PTX, for people to read.
	PTX(ctx context.Context, s Source) ([]byte, error)
}

// Choice names a compiler.
type Choice string

const (
	Auto  Choice = "auto" // NVRTC if there is one, else nvcc
	NVRTC Choice = "nvrtc"
	NVCC  Choice = "nvcc"
)

// FindCompiler returns the chosen one of the tools. It keeps the versions that it
// finds in the folder memo, so that NVRTC, which takes a while to load, is
// not loaded until something needs a compile.
func FindCompiler(ctx context.Context, choice Choice, tools toolchain.Tools, memo string) (Compiler, error) {
	switch {
	case (choice == Auto || choice == NVRTC) && tools.NVRTC != "":
		version, err := toolchain.Version(ctx, tools.NVRTC, memo)
		if err != nil {
			return nil, err
		}
		return &nvrtcCompiler{
			version: version,
			open:    sync.OnceValues(func() (*nvrtc.Library, error) { return nvrtc.Open(tools.NVRTC) }),
		}, nil
	case (choice == Auto || choice == NVCC) && tools.NVCC != "":
		version, err := toolchain.Version(ctx, tools.NVCC, memo)
		if err != nil {
			return nil, err
		}
		return &nvccCompiler{path: tools.NVCC, version: version}, nil
	case choice == Auto:
		return nil, errors.New("build: neither NVRTC nor nvcc is found; run `kgen toolchain install`, or set CUDA_HOME to a CUDA toolkit")
	case choice == NVRTC:
		return nil, nvrtc.ErrNotFound
	case choice == NVCC:
		return nil, errors.New("build: nvcc is not found; run `kgen toolchain install --nvcc`, or set CUDA_HOME to a CUDA toolkit")
	default:
		return nil, fmt.Errorf("build: unknown compiler %q: it is one of auto, nvrtc, nvcc", choice)
	}
}

type nvrtcCompiler struct {
	version string
	open    func() (*nvrtc.Library, error)
}

func (c *nvrtcCompiler) ID() string      { return nvrtc.ID }
func (c *nvrtcCompiler) Version() string { return c.version }

func (c *nvrtcCompiler) compile(ctx context.Context, s Source) (nvrtc.Result, error) {
	library, err := c.open()
	if err != nil {
		return nvrtc.Result{}, err
	}
	if library.Version() != c.version {
		return nvrtc.Result{}, fmt.Errorf("build: %s was version %s and is now %s; run the command again", library.Path(), c.version, library.Version())
	}
	return library.Compile(ctx, nvrtc.Program{Name: s.Name, Source: s.Text, Target: string(s.Target), Flags: Flags()})
}

func (c *nvrtcCompiler) Compile(ctx context.Context, s Source) (cubincache.Entry, error) {
	r, err := c.compile(ctx, s)
	return cubincache.Entry{Cubin: r.Cubin, Log: r.Log}, err
}

func (c *nvrtcCompiler) PTX(ctx context.Context, s Source) ([]byte, error) {
	r, err := c.compile(ctx, s)
	return r.PTX, err
}

type nvccCompiler struct {
	path    string
	version string
}

func (c *nvccCompiler) ID() string      { return "nvcc" }
func (c *nvccCompiler) Version() string { return c.version }

func (c *nvccCompiler) Compile(ctx context.Context, s Source) (cubincache.Entry, error) {
	cubin, log, err := c.run(ctx, s, append(Flags(), "--cubin"))
	return cubincache.Entry{Cubin: cubin, Log: log}, err
}

func (c *nvccCompiler) PTX(ctx context.Context, s Source) ([]byte, error) {
	ptx, _, err := c.run(ctx, s, append(Flags(), "--ptx"))
	return ptx, err
}

// run runs nvcc in a folder of its own, which also takes its temporary files.
func (c *nvccCompiler) run(ctx context.Context, s Source, flags []string) (output []byte, log string, err error) {
	if s.Name != filepath.Base(s.Name) || filepath.Ext(s.Name) != ".cu" {
		return nil, "", fmt.Errorf("build: source name %q is not a file name ending in .cu", s.Name)
	}
	dir, err := os.MkdirTemp("", "kgen-nvcc-")
	if err != nil {
		return nil, "", fmt.Errorf("build: nvcc needs a temporary folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, s.Name), s.Text, 0o644); err != nil {
		return nil, "", fmt.Errorf("build: write the source for nvcc: %w", err)
	}
	const out = "output"
	log, err = subprocess.Run(ctx, subprocess.Command{
		Path: c.path,
		Args: append([]string{"--gpu-architecture=" + string(s.Target), "--output-file=" + out, s.Name}, flags...),
		Dir:  dir,
		Env:  append(os.Environ(), "TMPDIR="+dir),
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, "", err
		}
		return nil, "", fmt.Errorf("build: %s for %s: %w", s.Name, s.Target, err)
	}
	output, err = os.ReadFile(filepath.Join(dir, out))
	if err != nil {
		return nil, "", fmt.Errorf("build: %s for %s: nvcc ended well but wrote no output: %w\n%s", s.Name, s.Target, err, log)
	}
	return output, log, nil
}
