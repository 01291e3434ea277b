package emit

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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
