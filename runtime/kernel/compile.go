package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// NVRTC returns a function for Options.Compile that takes machine code from
// the cache in cacheDir (empty: none), else makes it with NVRTC and stores it.
// What the compiler of the package's build made, and kgen build has put there, needs no
// NVRTC; what any other version made is found by that version alone. NVRTC is looked
// for in toolchainDirs and then where [nvrtc.Find] says, when it is first
// needed; once it is found, it is kept.
func NVRTC(cacheDir string, toolchainDirs ...string) func(context.Context, Source) ([]byte, error) {
	return cached(cubincache.Cache{Dir: cacheDir}, func() (compiler, error) {
		path, err := nvrtc.Find("", toolchainDirs...)
		if err != nil {
			return nil, err
		}
		return nvrtc.Open(path)
	})
}

// defaultCompile is NVRTC with the folders that the kgen command has: in
// KGEN_CACHE_DIR, or else in the user's cache directory. A user without one does
// without the cache.
func defaultCompile() func(context.Context, Source) ([]byte, error) {
	dir := os.Getenv("KGEN_CACHE_DIR")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return NVRTC("")
		}
		dir = filepath.Join(user, "kgen")
	}
	return advised(NVRTC(filepath.Join(dir, "cubins"), filepath.Join(dir, "toolchain")))
}

// advised says what to do where the cache can't be used.
func advised(compile func(context.Context, Source) ([]byte, error)) func(context.Context, Source) ([]byte, error) {
	return func(ctx context.Context, s Source) ([]byte, error) {
		cubin, err := compile(ctx, s)
		if errors.Is(err, cubincache.ErrUnusable) {
			err = fmt.Errorf("%w; set KGEN_CACHE_DIR to a folder that can be written", err)
		}
		return cubin, err
	}
}

// compiler is what is used of an nvrtc.Library.
type compiler interface {
	Version() string
	Compile(ctx context.Context, p nvrtc.Program) (nvrtc.Result, error)
}

func cached(cache cubincache.Cache, open func() (compiler, error)) func(context.Context, Source) ([]byte, error) {
	open = onceFound(open)
	return func(ctx context.Context, s Source) ([]byte, error) {
		if s.Compiler != (abi.Compiler{}) {
			if entry, hit, err := cache.Get(s.key(s.Compiler)); hit || err != nil {
				return entry.Cubin, err
			}
		}
		c, err := open()
		if err != nil {
			return nil, err
		}
		entry, _, err := cache.GetOrBuild(ctx, s.key(abi.Compiler{ID: nvrtc.ID, Version: c.Version()}), func(ctx context.Context) (cubincache.Entry, error) {
			r, err := c.Compile(ctx, nvrtc.Program{Name: s.Name, Source: s.Text, Target: s.Target, Flags: s.Flags})
			return cubincache.Entry{Cubin: r.Cubin, Log: r.Log}, err
		})
		return entry.Cubin, err
	}
}

// key is where the cache has what a compiler makes of the source.
func (s Source) key(by abi.Compiler) cubincache.Key {
	return cubincache.Input{
		Name: s.Name, Compiler: by.ID, Version: by.Version, Flags: s.Flags, Target: s.Target, Source: s.Text,
	}.Key()
}

// onceFound calls open until it gives a compiler, and keeps that.
func onceFound(open func() (compiler, error)) func() (compiler, error) {
	var mu sync.Mutex
	var found compiler
	return func() (compiler, error) {
		mu.Lock()
		defer mu.Unlock()
		if found != nil {
			return found, nil
		}
		c, err := open()
		if err != nil {
			return nil, err
		}
		found = c
		return c, nil
	}
}
