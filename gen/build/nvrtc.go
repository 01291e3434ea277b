package build

import (
	"context"
	"fmt"
	"sync"

	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// nvrtcCompiler is NVRTC. compile also returns the version of what compiled.
type nvrtcCompiler struct {
	path    string
	version string
	compile func(context.Context, nvrtc.Program) (string, nvrtc.Result, error)
}

// newNVRTC returns NVRTC in this process, loaded when first used.
func newNVRTC(path, version string) *nvrtcCompiler {
	open := sync.OnceValues(func() (*nvrtc.Library, error) { return nvrtc.Open(path) })
	return &nvrtcCompiler{path: path, version: version,
		compile: func(ctx context.Context, p nvrtc.Program) (string, nvrtc.Result, error) {
			library, err := open()
			if err != nil {
				return "", nvrtc.Result{}, err
			}
			r, err := library.Compile(ctx, p)
			return library.Version(), r, err
		}}
}

func (c *nvrtcCompiler) ID() string      { return nvrtc.ID }
func (c *nvrtcCompiler) Version() string { return c.version }

func (c *nvrtcCompiler) run(ctx context.Context, s Source) (nvrtc.Result, error) {
	version, r, err := c.compile(ctx, nvrtc.Program{Name: s.Name, Source: s.Text, Target: string(s.Target), Flags: Flags()})
	if err == nil && version != c.version {
		return nvrtc.Result{}, fmt.Errorf("build: %s was version %s and is now %s; run the command again", c.path, c.version, version)
	}
	return r, err
}

func (c *nvrtcCompiler) Compile(ctx context.Context, s Source) (cubincache.Entry, error) {
	r, err := c.run(ctx, s)
	return cubincache.Entry{Cubin: r.Cubin, Log: r.Log}, err
}

func (c *nvrtcCompiler) PTX(ctx context.Context, s Source) ([]byte, error) {
	r, err := c.run(ctx, s)
	return r.PTX, err
}
