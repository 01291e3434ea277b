package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kgen-project/kgen/gen/subprocess"
	"github.com/kgen-project/kgen/runtime/cubincache"
)

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
