package nvrtc

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kgen-project/kgen/tests/testutil"
)

// library opens the NVRTC of this machine. Opening it once keeps the tests
// quick.
var library = sync.OnceValues(func() (*Library, error) {
	path, err := Find("", testutil.Toolchain())
	if err != nil {
		return nil, err
	}
	return Open(path)
})

func openLibrary(t *testing.T) *Library {
	t.Helper()
	l, err := library()
	if errors.Is(err, ErrNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const scale = `extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }`

func TestCompile(t *testing.T) {
	l := openLibrary(t)
	for _, target := range []string{"sm_80", "sm_90a", "sm_100a", "sm_120a"} {
		r, err := l.Compile(t.Context(), Program{Name: "scale.cu", Source: []byte(scale), Target: target, Flags: []string{"--std=c++17"}})
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(r.Cubin))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(r.PTX, []byte(".entry scale")) {
			t.Errorf("%s: the PTX has no kernel scale:\n%s", target, r.PTX)
		}
		if f.Section(".text.scale") == nil {
			t.Errorf("%s: the cubin has no kernel scale", target)
		}
	}
}

func TestVersion(t *testing.T) {
	l := openLibrary(t)
	if strings.Count(l.Version(), ".") != 2 {
		t.Errorf("Version() = %q, want three numbers", l.Version())
	}
}

func TestCompileError(t *testing.T) {
	l := openLibrary(t)
	for _, test := range []struct {
		name, source, target string
		flags                []string
		want                 []string
	}{
		{"source", "__global__ void f() {\n  one = 1;\n  two = 2;\n}", "sm_80", nil,
			[]string{"bad.cu for sm_80", "NVRTC_ERROR_COMPILATION", "bad.cu(2): error", `"one"`, "bad.cu(3): error", `"two"`}},
		{"target", "", "sm_7", nil, []string{"bad.cu for sm_7", "sm_7"}},
		{"flag", "", "sm_80", []string{"--no-such-flag"}, []string{"--no-such-flag"}},
		{"zero byte", "int a;\x00", "sm_80", nil, []string{"bad.cu", "byte 6"}},
		{"no target", "", "", nil, []string{"no target"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := l.Compile(t.Context(), Program{Name: "bad.cu", Source: []byte(test.source), Target: test.target, Flags: test.flags})
			if err == nil {
				t.Fatal("it compiled")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

func TestCompileCancelled(t *testing.T) {
	l := openLibrary(t)
	// A program that takes the compiler a while.
	source := []byte(`extern "C" __global__ void slow(float* x) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = x[i];
#pragma unroll
  for (int r = 0; r < 60; r++)
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + r) & 63] + a[(i + 1) & 63];
  for (int i = 0; i < 64; i++) x[i] = a[i];
}`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := l.Compile(ctx, Program{Name: "slow.cu", Source: source, Target: "sm_80"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Compile under way: %v", err)
	}
	if _, err := l.Compile(ctx, Program{Name: "slow.cu", Source: source, Target: "sm_80"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Compile after the end: %v", err)
	}
}

func TestCompileIsRepeatable(t *testing.T) {
	l := openLibrary(t)
	cubins := make([][]byte, 4)
	var wait sync.WaitGroup
	for i := range cubins {
		wait.Go(func() {
			r, err := l.Compile(t.Context(), Program{Name: "scale.cu", Source: []byte(scale), Target: "sm_90a"})
			if err != nil {
				t.Error(err)
			}
			cubins[i] = r.Cubin
		})
	}
	wait.Wait()
	for _, c := range cubins[1:] {
		if !bytes.Equal(c, cubins[0]) {
			t.Error("two compiles of one program differ")
		}
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	write := func(path string) string {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	toolkit := write("toolkit/lib64/libnvrtc.so.12.10")
	write("toolkit/lib64/libnvrtc.so.12.9")
	other := write("other/targets/x86_64-linux/lib/libnvrtc.so.12")
	wheel := write("wheels/13.0.88/nvidia/cu13/lib/libnvrtc.so.13")
	write("wheels/13.0.88/nvidia/cu13/lib/libnvrtc.alt.so.13")
	t.Setenv("CUDA_HOME", filepath.Join(root, "toolkit"))
	t.Setenv("CUDA_PATH", filepath.Join(root, "other"))
	for _, test := range []struct {
		name, path string
		dirs       []string
		want       string
	}{
		{"environment", "", nil, toolkit},
		{"folder before environment", "", []string{filepath.Join(root, "none"), filepath.Join(root, "wheels")}, wheel},
		{"given file", other, []string{filepath.Join(root, "wheels")}, other},
		{"given folder", filepath.Join(root, "other"), nil, other},
	} {
		got, err := Find(test.path, test.dirs...)
		if err != nil || got != test.want {
			t.Errorf("%s: Find = %q, %v; want %q", test.name, got, err, test.want)
		}
	}
	if _, err := Find(filepath.Join(root, "none")); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("given folder without the library: %v", err)
	}
}

func TestBuiltinsBeside(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"libnvrtc.so.12.2.140", "libnvrtc-builtins.so.12.2", "libnvrtc-builtins.so.12.2.140", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.12.2"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "libnvrtc.so.12")
	if err := os.Symlink("libnvrtc.so.12.2.140", link); err != nil {
		t.Fatal(err)
	}
	if got := filepath.Base(builtinsBeside(link)); got != "libnvrtc-builtins.so.12.2.140" {
		t.Errorf("builtinsBeside = %s", got)
	}
	if got := builtinsBeside(filepath.Join(dir, "libnvrtc.so.11")); got != "" {
		t.Errorf("builtinsBeside of version 11 = %s", got)
	}
}

func TestOpenNotALibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvrtc.so")
	if err := os.WriteFile(path, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Open of a text file: %v", err)
	}
}
