package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// workerVariable has this test binary be a worker.
const workerVariable = "KGEN_BUILD_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) == "" {
		os.Exit(m.Run())
	}
	answers := os.NewFile(WorkerAnswers, "answers")
	if err := Work(context.Background(), os.Args[len(os.Args)-1], os.Stdin, answers); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// isolate returns NVRTC in processes that run this test binary.
func isolate(t *testing.T, library, version string) Compiler {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(workerVariable, "1")
	c, stop := Isolate(newNVRTC(library, version), self)
	t.Cleanup(stop)
	return c
}

func TestIsolatedGivesTheSame(t *testing.T) {
	tools := installed(t)
	inside, err := FindCompiler(t.Context(), NVRTC, tools, "")
	if errors.Is(err, nvrtc.ErrNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	outside := isolate(t, tools.NVRTC, inside.Version())
	var sources []Source
	for _, target := range []spec.Target{"sm_80", "sm_90a", "sm_100a", "sm_120a"} {
		sources = append(sources, figures(t, "spilling", target))
	}
	want, err := Build(t.Context(), inside, cubincache.Cache{}, sources, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Build(t.Context(), outside, cubincache.Cache{}, sources, Options{Jobs: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i].Figures != want[i].Figures {
			t.Errorf("figures in a process of its own %+v, in this one %+v", got[i].Figures, want[i].Figures)
		}
	}
	bad := Source{Name: "bad.cu", Text: []byte("int f() { return one; }"), Target: "sm_80"}
	_, wantErr := inside.Compile(t.Context(), bad)
	_, gotErr := outside.Compile(t.Context(), bad)
	var rejected *nvrtc.CompileError
	if !errors.As(gotErr, &rejected) || gotErr.Error() != wantErr.Error() {
		t.Errorf("error %v, want %v", gotErr, wantErr)
	}
	if _, err := isolate(t, tools.NVRTC, "1.2.3").Compile(t.Context(), sources[0]); err == nil || !strings.Contains(err.Error(), "was version 1.2.3") {
		t.Errorf("another version: %v", err)
	}
}

// fakeNVRTC makes a libnvrtc whose compile of anything but the empty program runs the
// statement.
func fakeNVRTC(t *testing.T, statement string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("this test makes a library with cc, which is not found")
	}
	source := `#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static const char ptx[] = "// Cuda compilation tools, release 13.0, V13.0.88\n";
int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return 0; }
const char* nvrtcGetErrorString(int code) { return "failed"; }
int nvrtcCreateProgram(void** p, const char* source, const char* n, int c, void* h, void* i) { *p = strdup(source); return 0; }
int nvrtcDestroyProgram(void** p) { free(*p); return 0; }
int nvrtcCompileProgram(const char* p, int n, void* o) { if (*p) { ` + statement + `; } return 0; }
int nvrtcGetPTXSize(void* p, size_t* n) { *n = sizeof ptx; return 0; }
int nvrtcGetPTX(void* p, char* out) { memcpy(out, ptx, sizeof ptx); return 0; }
int nvrtcGetCUBINSize(void* p, size_t* n) { *n = 0; return 0; }
int nvrtcGetCUBIN(void* p, char* out) { return 0; }
int nvrtcGetProgramLogSize(void* p, size_t* n) { *n = 0; return 0; }
int nvrtcGetProgramLog(void* p, char* out) { return 0; }
`
	library := filepath.Join(t.TempDir(), "libnvrtc.so")
	cmd := exec.Command(cc, "-shared", "-fPIC", "-w", "-o", library, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return library
}

func TestIsolatedCompilerCrashes(t *testing.T) {
	for _, test := range []struct {
		name, statement string
		want            []string
	}{
		{"bad address", `*(volatile int*)8 = 1`, []string{"SIGSEGV"}},
		{"abort", `puts("assertion failed: why"); fflush(stdout); abort()`, []string{"assertion failed: why", "SIGABRT"}},
		{"killed", `raise(SIGKILL)`, []string{"signal: killed"}},
		{"exit", `exit(0)`, []string{"EOF"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := isolate(t, fakeNVRTC(t, test.statement), "13.0.88")
			_, err := c.Compile(t.Context(), Source{Name: "k.cu", Text: []byte("a program"), Target: "sm_80"})
			for _, want := range append(test.want, "k.cu for sm_80: the compiler crashed") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
			if err != nil && strings.Contains(err.Error(), "goroutine") {
				t.Errorf("a trace of kgen in the message: %v", err)
			}
			// The next compile has a new process.
			if _, err := c.Compile(t.Context(), Source{Name: "k.cu", Target: "sm_80"}); err != nil {
				t.Errorf("the empty program: %v", err)
			}
		})
	}
}

func TestIsolatedIsCancelled(t *testing.T) {
	c := isolate(t, fakeNVRTC(t, "sleep(60)"), "13.0.88")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := c.Compile(ctx, Source{Name: "k.cu", Text: []byte("a program"), Target: "sm_80"})
	if err != context.DeadlineExceeded || time.Since(start) > 20*time.Second {
		t.Errorf("error %v after %v", err, time.Since(start))
	}
}

func TestIsolateFailures(t *testing.T) {
	notLibrary := filepath.Join(t.TempDir(), "libnvrtc.so")
	if err := os.WriteFile(notLibrary, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := isolate(t, notLibrary, "13.0.88").Compile(t.Context(), Source{Name: "k.cu", Target: "sm_80"}); err == nil || !strings.Contains(err.Error(), "load "+notLibrary) {
		t.Errorf("no library: %v", err)
	}
	c, stop := Isolate(newNVRTC(notLibrary, "13.0.88"), "/no/such/kgen")
	defer stop()
	if _, err := c.Compile(t.Context(), Source{Name: "k.cu", Target: "sm_80"}); err == nil || !strings.Contains(err.Error(), "/no/such/kgen") {
		t.Errorf("no worker: %v", err)
	}
	nvcc := &nvccCompiler{}
	if c, _ := Isolate(nvcc, "kgen"); c != Compiler(nvcc) {
		t.Error("nvcc is not returned as it is")
	}
}
