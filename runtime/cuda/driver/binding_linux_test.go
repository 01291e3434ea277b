package driver

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/internal/bindingtest"
)

func TestBinding(t *testing.T) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	file := filepath.Join(t.TempDir(), "libcuda.so.1")
	source := filepath.Join("..", "internal", "bindingtest", "testdata", "libcuda.c")
	out, err := exec.Command(compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", file, source).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l, err := loadLibrary(file)
	if err != nil {
		t.Fatal(err)
	}
	bindingtest.Run(t, l, file)
}

func TestNoLibrary(t *testing.T) {
	for _, file := range []string{"libcuda-that-is-absent.so.1", "libc.so.6"} { // the second lacks the symbols
		_, err := loadLibrary(file)
		if !errors.Is(err, cuda.ErrNoLibrary) {
			t.Errorf("%s: error %v", file, err)
		}
	}
	_, err := loadLibrary("libcuda-that-is-absent.so.1")
	if !errors.Is(err, cuda.ErrNoDevice) {
		t.Errorf("error %v", err)
	}
}
