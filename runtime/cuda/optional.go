package cuda

import "github.com/kgen-project/kgen/runtime/abi"

// GraphDevice is a Device that can record launches and replay them as one.
type GraphDevice interface {
	Device
	// Capture records what f launches on s, running none of it. s must not be
	// the default stream. f must launch from the goroutine it is called on, and
	// must not allocate, copy or wait. While f runs, other goroutines must not
	// use the default stream, Upload or Download.
	Capture(s Stream, f func() error) (Graph, error)
}

// Graph is a recorded sequence of launches.
type Graph interface {
	Launch(s Stream) error
	Destroy() error
}

// MemoryDevice is a Device that knows how much of its memory is in use.
type MemoryDevice interface {
	Device
	// Memory returns the free and the total bytes of device memory.
	Memory() (free, total int64, err error)
}

// TensorMapper is a Device whose kernels can use bulk tensor copies (TMA).
type TensorMapper interface {
	Device
	// EncodeTensorMap returns the 128 bytes that a kernel's tensor copies take;
	// they are to be uploaded to an address that is a multiple of 64.
	EncodeTensorMap(t TensorMap) ([128]byte, error)
}

// TensorMap describes a tensor of 16-bit elements that is copied in boxes, which
// shared memory gets with a 128-byte swizzle; elements outside the tensor are zeros.
// Dimensions are innermost first, and the first is contiguous.
type TensorMap struct {
	Base    abi.DevicePtr // a multiple of 16
	Dims    [4]int64      // elements
	Strides [3]int64      // bytes from one index of dimensions 1, 2 and 3 to the next: multiples of 16, in any order
	Box     [4]int        // elements; Box[0] is at most 64, the others at most 256
}
