package cuda

import (
	"errors"
	"fmt"
)

// Kinds of failure that callers tell apart with errors.Is.
var (
	ErrNoLibrary   = errors.New("the CUDA driver library was not found")
	ErrNoDevice    = errors.New("no usable CUDA device")
	ErrOutOfMemory = errors.New("out of device memory")
	ErrLaunch      = errors.New("a kernel failed")
	ErrClosed      = errors.New("the device is closed")
)

// Error is a driver call that returned a code other than success. A code that
// wraps [ErrLaunch] may stem from work launched before the call.
type Error struct {
	Call string // driver function, such as "cuMemAlloc"
	Code int    // CUresult
	Name string // such as "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // the driver's description
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
}

// Is reports whether the code is of the kind that target stands for.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case 2: // OUT_OF_MEMORY
		return target == ErrOutOfMemory
	case 34, 100, 101: // STUB_LIBRARY, NO_DEVICE, INVALID_DEVICE
		return target == ErrNoDevice
	case 700, 701, 702, 710, 714, 715, 716, 717, 718, 719, 720:
		// ILLEGAL_ADDRESS, LAUNCH_OUT_OF_RESOURCES, LAUNCH_TIMEOUT, ASSERT, HARDWARE_STACK_ERROR,
		// ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC,
		// LAUNCH_FAILED, COOPERATIVE_LAUNCH_TOO_LARGE
		return target == ErrLaunch
	}
	return false
}
