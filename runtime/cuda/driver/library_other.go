//go:build !linux

package driver

import (
	"fmt"
	"runtime"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/internal/device"
)

func loadLibrary(string) (*device.Library, error) {
	return nil, fmt.Errorf("%w: %w: kgen drives GPUs on Linux only, not on %s",
		cuda.ErrNoDevice, cuda.ErrNoLibrary, runtime.GOOS)
}
