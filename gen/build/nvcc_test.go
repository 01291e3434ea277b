package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// fakeNVCC writes a shell script that stands for nvcc, and keeps its temporary
// files where they can be looked for.
func fakeNVCC(t *testing.T, script string) Compiler {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvcc")
	script = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'release 13.0, V13.0.88'; exit; fi\n" + script
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	c, err := FindCompiler(t.Context(), NVCC, toolchain.Tools{NVCC: path}, "")
	if err != nil {
		t.Fatal(err)
	}
	if c.ID() != "nvcc" || c.Version() != "13.0.88" {
		t.Fatalf("compiler %s %s", c.ID(), c.Version())
	}
	return c
}

func noTemporaryFiles(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}

func TestNVCCFailures(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"message", "echo 'k.cu(1): error: first'; echo 'k.cu(2): error: second' >&2; exit 2",
			[]string{"k.cu for sm_90a", "nvcc: exit status 2", "error: first", "error: second"}},
		{"crash", "echo half > output; echo 'the last words'; kill -SEGV $$",
			[]string{"k.cu for sm_90a", "nvcc: it crashed", "segmentation fault", "the last words"}},
		{"no output", "echo nothing to do", []string{"k.cu for sm_90a", "wrote no output", "nothing to do"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := fakeNVCC(t, test.script)
			_, err := c.Compile(t.Context(), Source{Name: "k.cu", Target: "sm_90a"})
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
			noTemporaryFiles(t)
		})
	}
}

func TestNVCCCancelled(t *testing.T) {
	c := fakeNVCC(t, "sleep 60 & sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := c.Compile(ctx, Source{Name: "k.cu", Target: "sm_90a"})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
		t.Errorf("error %v after %v", err, time.Since(start))
	}
	noTemporaryFiles(t)
}

func TestNVCCCommand(t *testing.T) {
	c := fakeNVCC(t, `echo "$@"; cat k.cu > output`)
	entry, err := c.Compile(t.Context(), Source{Name: "k.cu", Text: []byte("the source"), Target: "sm_90a"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "--gpu-architecture=sm_90a --output-file=output k.cu --std=c++17 --ptxas-options=-v --cubin\n"
	if entry.Log != want || string(entry.Cubin) != "the source" {
		t.Errorf("arguments %q, output %q", entry.Log, entry.Cubin)
	}
	for _, name := range []string{"../k.cu", "a/k.cu", "", "k", ".."} {
		if _, err := c.Compile(t.Context(), Source{Name: name, Target: "sm_90a"}); err == nil || !strings.Contains(err.Error(), "not a file name") {
			t.Errorf("name %q: error %v", name, err)
		}
	}
}

func TestFindCompiler(t *testing.T) {
	for _, test := range []struct {
		choice Choice
		want   string
	}{
		{Auto, "kgen toolchain install`"},
		{NVRTC, "kgen toolchain install`"},
		{NVCC, "kgen toolchain install --nvcc`"},
		{"gcc", "one of auto, nvrtc, nvcc"},
	} {
		_, err := FindCompiler(t.Context(), test.choice, toolchain.Tools{}, "")
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q in it", test.choice, err, test.want)
		}
	}
	if _, err := FindCompiler(t.Context(), NVRTC, toolchain.Tools{}, ""); !errors.Is(err, nvrtc.ErrNotFound) {
		t.Errorf("NVRTC absent: %v", err)
	}
}
