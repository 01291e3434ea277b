//go:build gorgonia && linux && cgo

package gorgonia

import (
	"testing"

	"github.com/ebitengine/purego"

	"github.com/kgen-project/kgen/runtime/cuda/internal/bindingtest"
)

// TestBinding wants bindingtest's libcuda in the place of the driver's:
// tests/gorgonia/build.sh sees to that.
func TestBinding(t *testing.T) {
	const file = "libcuda.so.1"
	handle, err := purego.Dlopen(file, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := purego.Dlsym(handle, "fake_record"); err != nil {
		t.Skip("libcuda.so.1 is the driver's")
	}
	bindingtest.Run(t, library(), file)
}
