package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/tune"
)

// doctor says who chooses the plans of the machine's GPU, and when its table is of
// another driver or compiler.
func TestPlansOf(t *testing.T) {
	empty, folder := t.TempDir(), t.TempDir()
	write := func(driver, compiler string) {
		e := tune.Entry{Date: "2026-11-21", Identity: tune.Identity{Spec: "llama3", Digest: "d", GPU: "NVIDIA H200", Target: "sm_90a",
			Driver: driver, Compiler: compiler, Sources: "0123456789abcdef"}}
		table := tune.Table{GPU: "NVIDIA H200"}.With(e).Marshal()
		table = append(table, "      {}\n"...) // no kinds
		if err := os.WriteFile(filepath.Join(folder, tune.FileName("NVIDIA H200")), table, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h200 := gpu{Name: "NVIDIA H200", Driver: "CUDA 13.0, 580.95.05"}
	const nvrtc = "nvrtc 13.0.88"
	for _, c := range []struct {
		driver, compiler string
		gpu              gpu
		want             string
	}{
		{h200.Driver, nvrtc, gpu{Name: "NVIDIA H100"}, "the cost model's: NVIDIA H100 has no table in "},
		{h200.Driver, nvrtc, h200, "llama3 (2026-11-21); of other specs the cost model's"},
		{"CUDA 13.0, 580.65.06", nvrtc, h200, "llama3 (2026-11-21, but the driver was CUDA 13.0, 580.65.06 and is now CUDA 13.0, 580.95.05: run kgen tune again)"},
		{h200.Driver, "nvrtc 12.9.1", h200, "but the compiler was nvrtc 12.9.1 and is now nvrtc 13.0.88"},
	} {
		write(c.driver, c.compiler)
		if got := plansOf(t.Context(), c.gpu, nvrtc, empty, folder); !strings.Contains(got, c.want) {
			t.Errorf("%q does not say %q", got, c.want)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, tune.FileName("NVIDIA H200")), []byte("gpu: ["), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := plansOf(t.Context(), h200, nvrtc, folder); !strings.Contains(got, "can't be read: ") {
		t.Error(got)
	}
}
