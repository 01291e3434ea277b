package emit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// TestHeaderCompiles holds that C11 and C++ compilers take the header, find
// every layout as it says, and take the headers of two specs in one file.
func TestHeaderCompiles(t *testing.T) {
	s, plans := tiny(t)
	folder := t.TempDir()
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tiny", "tiny2"} {
		s.Name = name
		var kernels []Kernel
		for _, p := range plans {
			k, err := emitKernel(s, p, os.DirFS("testdata/tiny/templates"))
			if err != nil {
				t.Fatal(err)
			}
			kernels = append(kernels, k)
		}
		write(name+".h", Header(s, kernels, ""))
	}
	const use = `#include "tiny.h"
#include "tiny2.h"
#include "tiny.h"
static const double frequencies[] = KGEN_TINY_ROPE_FREQUENCIES;
#if KGEN_TINY_GROUP != 2 || KGEN_TINY2_MERGE_SM80_THREADS != 256 || !KGEN_TINY_CAUSAL
#error "constants"
#endif
int main(void) {
  KgenItem item = {0, 0, 0, 0, 0, KGEN_FINAL, 0, 0};
  KgenRun run;
  run.causal = KGEN_VISIBLE;
  const char* entry = KGEN_TINY_PREFILL_SM80_ENTRY;
  return item.slot + run.causal + entry[0] + (int)(frequencies[0] + KGEN_TINY_SCALE * KGEN_TINY_ROPE_SCALE);
}
`
	write("use.c", []byte(use))
	write("use.cpp", []byte(use))
	for _, command := range [][]string{
		{"gcc", "-std=c11", "use.c"},
		{"g++", "-std=c++11", "use.cpp"},
		{"g++", "-std=c++20", "use.cpp"},
	} {
		if _, err := exec.LookPath(command[0]); err != nil {
			t.Logf("no %s here", command[0])
			continue
		}
		args := append([]string{"-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"}, command[1:]...)
		run := exec.CommandContext(t.Context(), command[0], args...)
		run.Dir = folder
		if out, err := run.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", command, err, out)
		}
	}
}

// What the header says of tensor maps is what runtime/kernel makes.
func TestHeaderMaps(t *testing.T) {
	s, _ := tiny(t)
	for _, c := range []struct {
		layout spec.Layout
		page   int
		want   string
	}{
		{spec.NHD, 16, "dimensions (64, 8, kv_heads * dim / 64, 2, pages), strides of\n" +
			"// (1, kv_heads * dim, 64, 8 * kv_heads * dim, 16 * kv_heads * dim) elements, boxes (64, 8, dim / 64, 2, 1)."},
		{spec.HND, 256, "dimensions (64, 8, dim / 64, 32, pages * kv_heads), strides of\n" +
			"// (1, dim, 64, 8 * dim, 256 * dim) elements, boxes (64, 8, dim / 64, 16, 1)."},
	} {
		s.Cache.Layout, s.Cache.PageSize = c.layout, c.page
		p := plan.Plan{Kind: spec.Extend, Family: plan.SM90, Targets: []spec.Target{"sm_90a"}, Rows: 128, Keys: 128, Stages: 2, Warps: 12}
		if header := string(Header(s, []Kernel{{Plan: p}}, "")); !strings.Contains(header, c.want) {
			t.Errorf("%s, pages of %d: %q is not in\n%s", c.layout, c.page, c.want, header)
		}
	}
}
