//go:build gorgonia && linux && cgo

package gorgonia

import (
	"context"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/internal/device"
)

// Open opens the GPU with the given ordinal, counted from 0 over those that
// the driver shows to this process; where there is none of that ordinal the
// error wraps [cuda.ErrNoDevice]. The device is that of package driver, called
// another way.
func Open(ctx context.Context, ordinal int) (cuda.Device, error) {
	return device.Open(ctx, library(), ordinal)
}
