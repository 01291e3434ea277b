package kernel

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
	"github.com/kgen-project/kgen/tests/testutil"
)

type fakeCompiler struct {
	version string
	err     error

	mu       sync.Mutex
	compiled []nvrtc.Program
}

func (c *fakeCompiler) Version() string { return c.version }

func (c *fakeCompiler) Compile(_ context.Context, p nvrtc.Program) (nvrtc.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compiled = append(c.compiled, p)
	return nvrtc.Result{Cubin: []byte(p.Target + " of " + p.Name), Log: "a remark"}, c.err
}

func TestCached(t *testing.T) {
	dir := t.TempDir()
	c := &fakeCompiler{version: "13.0.88"}
	opened := 0
	process := func() func(context.Context, Source) ([]byte, error) { // as if started afresh
		return cached(cubincache.Cache{Dir: dir}, func() (compiler, error) { opened++; return c, nil })
	}
	source := Source{Name: "decode.cu", Text: []byte("text"), Target: "sm_90a", Flags: []string{"-f"}}
	want := nvrtc.Program{Name: "decode.cu", Source: []byte("text"), Target: "sm_90a", Flags: []string{"-f"}}

	compile := process()
	if opened != 0 {
		t.Error("NVRTC is opened before it is wanted")
	}
	failed := errors.New("failed")
	c.err = failed
	if _, err := compile(t.Context(), source); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	c.err = nil
	for range 2 {
		for _, f := range []func(context.Context, Source) ([]byte, error){compile, process()} {
			got, err := f(t.Context(), source)
			if err != nil || string(got) != "sm_90a of decode.cu" {
				t.Errorf("got %q, %v", got, err)
			}
		}
	}
	if diff := cmp.Diff([]nvrtc.Program{want, want}, c.compiled); diff != "" { // the one that failed and one
		t.Error(diff)
	}
	if opened != 3 {
		t.Errorf("opened %d times by 3 processes", opened)
	}

	changes := []func(){
		func() { source.Name = "other.cu" },
		func() { source.Text = []byte("other") },
		func() { source.Target = "sm_90" },
		func() { source.Flags = nil },
		func() { c.version = "13.0.89" },
	}
	for i, change := range changes {
		change()
		before := len(c.compiled)
		if _, err := compile(t.Context(), source); err != nil || len(c.compiled) != before+1 {
			t.Errorf("change %d: not compiled again, %v", i, err)
		}
	}
}

// What the compiler of the package's build has put in the cache needs no NVRTC.
func TestCachedByBuild(t *testing.T) {
	cache := cubincache.Cache{Dir: t.TempDir()}
	compile := cached(cache, func() (compiler, error) { return nil, nvrtc.ErrNotFound })
	source := Source{Name: "decode.cu", Text: []byte("text"), Target: "sm_90a", Flags: []string{"-f"}}
	for _, c := range []struct {
		stored, asked abi.Compiler
		want          error
	}{
		{abi.Compiler{ID: "nvrtc", Version: "13.0.88"}, abi.Compiler{ID: "nvrtc", Version: "13.0.88"}, nil},
		{abi.Compiler{ID: "nvcc", Version: "13.0.88"}, abi.Compiler{ID: "nvcc", Version: "13.0.88"}, nil},
		{abi.Compiler{ID: "nvrtc", Version: "12.9.1"}, abi.Compiler{ID: "nvrtc", Version: "12.8.0"}, nvrtc.ErrNotFound},
		{abi.Compiler{}, abi.Compiler{}, nvrtc.ErrNotFound}, // the package doesn't say
	} {
		_, _, err := cache.GetOrBuild(t.Context(), source.key(c.stored), func(context.Context) (cubincache.Entry, error) {
			return cubincache.Entry{Cubin: []byte(c.stored.ID + c.stored.Version)}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b := testBundle()
		b.Kernels = b.Kernels[:1]
		a := &b.Kernels[0]
		a.File, a.Source, a.Targets, a.Cubins = source.Name, source.Text, []string{source.Target}, nil
		b.Flags, b.Compiler = source.Flags, c.asked
		dev := h200()
		set, err := Open(t.Context(), dev, b, Options{Compile: compile})
		if !errors.Is(err, c.want) {
			t.Errorf("%v of %v: error %v", c.asked, c.stored, err)
		}
		if err == nil {
			if got := string(dev.images[len(dev.images)-1].Cubin); got != c.stored.ID+c.stored.Version {
				t.Errorf("loaded %q", got)
			}
			if err := set.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestCachedWithoutNVRTC(t *testing.T) {
	compile := cached(cubincache.Cache{}, func() (compiler, error) { return nil, nvrtc.ErrNotFound })
	b := testBundle()
	b.Kernels[0].Cubins = nil
	_, err := Open(t.Context(), a100(), b, Options{Compile: compile})
	if !errors.Is(err, nvrtc.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

// NVRTC that is installed after the first attempt is found by the next, and opened once.
func TestCachedFindsNVRTCLater(t *testing.T) {
	c := &fakeCompiler{version: "13.0.88"}
	opened, there := 0, false
	compile := cached(cubincache.Cache{}, func() (compiler, error) {
		opened++
		if !there {
			return nil, nvrtc.ErrNotFound
		}
		return c, nil
	})
	for range 2 {
		if _, err := compile(t.Context(), Source{}); !errors.Is(err, nvrtc.ErrNotFound) {
			t.Errorf("error %v", err)
		}
	}
	there = true
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if _, err := compile(t.Context(), Source{}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if opened != 3 {
		t.Errorf("opened %d times, want 3", opened)
	}
}

func TestUnusableCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := &fakeCompiler{version: "13.0.88"}
	open := func() (compiler, error) { return c, nil }
	dir := filepath.Join(file, "cubins")
	_, err := advised(cached(cubincache.Cache{Dir: dir}, open))(t.Context(), Source{})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.HasSuffix(err.Error(), "; set KGEN_CACHE_DIR to a folder that can be written") {
		t.Errorf("error %v", err)
	}
	c.err = errors.New("failed")
	if _, err := advised(cached(cubincache.Cache{Dir: t.TempDir()}, open))(t.Context(), Source{}); err != c.err {
		t.Errorf("error %v, want %v as it is", err, c.err)
	}
}

func TestNVRTC(t *testing.T) {
	dir := t.TempDir()
	source := Source{Name: "nothing.cu", Text: []byte("extern \"C\" __global__ void nothing() {}"), Target: "sm_90a"}
	for range 2 {
		cubin, err := NVRTC(dir, testutil.Toolchain())(t.Context(), source)
		if errors.Is(err, nvrtc.ErrNotFound) {
			t.Skip(err)
		}
		if err != nil || !bytes.HasPrefix(cubin, []byte("\x7fELF")) {
			t.Errorf("%d bytes, %v", len(cubin), err)
		}
	}
	if entries, err := filepath.Glob(filepath.Join(dir, "*.cubin")); err != nil || len(entries) != 1 {
		t.Errorf("the cache has %v, %v", entries, err)
	}
}
