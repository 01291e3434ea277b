// Package driver opens NVIDIA GPUs through libcuda, called without cgo.
package driver

import (
	"context"
	"fmt"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/internal/device"
)

// Open opens the GPU with the given ordinal, counted from 0 over those that
// the driver shows to this process. Without a driver or a GPU the error wraps
// [cuda.ErrNoDevice]. The device also implements [cuda.GraphDevice],
// [cuda.Copier], [cuda.StreamFollower], [cuda.MemoryDevice] and [cuda.TensorMapper].
//
// Streams made by NewStream order themselves against the default stream, so
// Upload and Download, which use that one, come after the work on all of them.
func Open(ctx context.Context, ordinal int) (cuda.Device, error) {
	l, err := loadLibrary("libcuda.so.1")
	if err != nil {
		return nil, fmt.Errorf("open CUDA device %d: %w", ordinal, err)
	}
	return device.Open(ctx, l, ordinal)
}
