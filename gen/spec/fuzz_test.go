package spec

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse asserts that any input gives either a spec that survives being
// written and read again, or Errors.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"../../specs/*.yaml", "testdata/errors/*.yaml", "testdata/valid/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no seeds in %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	for _, data := range nasty() {
		f.Add(data[:min(len(data), 4096)])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("fuzz.yaml", data)
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("%T is not Errors: %v", err, err)
			}
			for _, e := range errs {
				if e.Line < 1 || e.Col < 1 || e.Field == "" || e.Msg == "" {
					t.Errorf("incomplete error %+v", e)
				}
			}
			return
		}
		again, err := Parse("again.yaml", Marshal(s))
		if err != nil {
			t.Fatalf("what Marshal wrote is refused: %v\n%s", err, Marshal(s))
		}
		if got, want := canonical(again), canonical(s); got != want {
			t.Fatalf("Marshal wrote another spec:\n%s\nfor\n%s", got, want)
		}
	})
}
