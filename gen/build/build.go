// Package build compiles generated sources to cubins: in parallel, each only
// once, and with an account of what every kernel uses.
//
// NVRTC works in this process, where a crash of the compiler ends everything;
// what was compiled before is whole in the cache. [Isolate] has it work in others.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kgen-project/kgen/gen/parallel"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cubincache"
)

// Flags is what both compilers are given besides the target. Fast-math is not
// among it; the last has the compiler tell of spills.
func Flags() []string { return []string{"--std=c++17", "--ptxas-options=-v"} }

// Source is one kernel to compile for one target.
type Source struct {
	Name   string // file name, such as decode_sm80_w4.cu; the cubin's bytes depend on it
	Entry  string // C name of the kernel
	Text   []byte // CUDA C++ that includes nothing
	Target spec.Target
}

// Cubin is a compiled Source.
type Cubin struct {
	Source    Source
	Cubin     []byte
	Figures   abi.ManifestTarget // its hash and what it uses
	Warnings  string             // the compiler's, if any
	FromCache bool
	Elapsed   time.Duration // of the compile; 0 from the cache
}

// Options change how [Build] works, not what it gives.
type Options struct {
	Jobs       int                                // compiles at a time; 0: one a CPU
	OnProgress func(done, total int, name string) // called after each source, one call at a time; may be nil
}

// Build compiles the sources, or takes their cubins from the cache, and
// returns them in the order of the sources. It tries all of them, unless the cache can't
// be used: the error has the compiler's whole message of every one that fails.
func Build(ctx context.Context, c Compiler, cache cubincache.Cache, sources []Source, o Options) ([]Cubin, error) {
	jobs := o.Jobs
	if jobs <= 0 {
		jobs = runtime.NumCPU()
	}
	cubins, failures := make([]Cubin, len(sources)), make([]error, len(sources))
	err := parallel.Each(ctx, jobs, len(sources), func(ctx context.Context, i int) error {
		cubins[i], failures[i] = buildOne(ctx, c, cache, sources[i])
		if errors.Is(failures[i], cubincache.ErrUnusable) { // as it is for all
			return failures[i]
		}
		return nil
	}, func(i, done int) {
		if o.OnProgress != nil {
			o.OnProgress(done, len(sources), sources[i].Name)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	return cubins, nil
}

func buildOne(ctx context.Context, c Compiler, cache cubincache.Cache, s Source) (Cubin, error) {
	key := cubincache.Input{
		Name:     s.Name,
		Compiler: c.ID(),
		Version:  c.Version(),
		Flags:    Flags(),
		Target:   string(s.Target),
		Source:   s.Text,
	}.Key()
	var elapsed time.Duration
	compile := func(ctx context.Context) (cubincache.Entry, error) {
		start := time.Now()
		defer func() { elapsed = time.Since(start) }()
		return c.Compile(ctx, s)
	}
	entry, hit, err := cache.GetOrBuild(ctx, key, compile)
	if err != nil {
		return Cubin{}, err
	}
	figures, err := inspect(entry, s.Entry)
	if err != nil && hit {
		// A program that loads kernels may have stored it without the compiler's messages:
		// where NVRTC takes machine code from a cache of its own, it gives none.
		if entry, err = cache.Rebuild(ctx, key, compile); err != nil {
			return Cubin{}, err
		}
		hit = false
		figures, err = inspect(entry, s.Entry)
	}
	if err != nil {
		return Cubin{}, fmt.Errorf("build: the cubin of %s for %s: %w", s.Name, s.Target, err)
	}
	sum := sha256.Sum256(entry.Cubin)
	figures.Target, figures.CubinSHA256 = string(s.Target), hex.EncodeToString(sum[:])
	return Cubin{Source: s, Cubin: entry.Cubin, Figures: figures, Warnings: warnings(entry.Log), FromCache: hit, Elapsed: elapsed}, nil
}
