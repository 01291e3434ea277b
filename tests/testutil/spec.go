package testutil

import (
	"os"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
)

// Spec is that of a file.
func Spec(t testing.TB, file string) spec.Spec {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spec.Parse(file, data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
