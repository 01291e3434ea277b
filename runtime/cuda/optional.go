package cuda

import (
	"context"
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
)

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

// Copier is a Device that copies on a stream, without the caller waiting for
// it.
type Copier interface {
	Device
	// AllocHost returns host memory that the device copies to and from by itself.
	// It is page-locked, so taking much of it takes long.
	AllocHost(bytes int64) ([]byte, error)
	// FreeHost takes what AllocHost returned, when no copy uses it any more.
	FreeHost(memory []byte) error
	// CopyAsync, CopyToHostAsync and CopyFromHostAsync queue a copy of blocks. In
	// device memory they lie b.Stride apart; in host memory they are packed, and
	// the slice is b.Size() long. With host memory that is not from AllocHost, the
	// call may wait for the copy. CopyAsync's source and destination don't overlap.
	CopyAsync(s Stream, dst, src abi.DevicePtr, b Blocks) error
	CopyToHostAsync(s Stream, dst []byte, src abi.DevicePtr, b Blocks) error
	CopyFromHostAsync(s Stream, dst abi.DevicePtr, src []byte, b Blocks) error
}

// EventDevice is a Device that tells when its work has got to a mark in a
// stream, while the work behind the mark goes on.
type EventDevice interface {
	Device
	NewEvent() (Event, error)
	DestroyEvent(e Event) error
	// Record makes e the mark of all that is queued on s by now, and no more of
	// what it marked before. s must not be captured.
	Record(e Event, s Stream) error
	// WaitEvent waits for what e marks, if it was ever recorded. A failure of that
	// work is Synchronize's to report.
	WaitEvent(ctx context.Context, e Event) error
}

// StreamFollower is an EventDevice whose streams wait for each other, and so can do
// independent work at a time.
type StreamFollower interface {
	EventDevice
	// Follow makes what is queued on s from now on wait for all that is queued on
	// after by now, which e then marks. Where after is captured, s becomes a part of
	// the capture, whose own stream must follow s again before it ends.
	Follow(s, after Stream, e Event) error
}

// LaneDevice is a Device that goes on when work of it has failed, and can tell whose
// work that was. Of another, whoever waits for a stream gets what failed on it.
type LaneDevice interface {
	Device
	// NewLane makes a stream whose work is in order with that of s, as if it were queued
	// there. What fails of it is not s's but its own, to Synchronize, and fails no
	// Upload or Download.
	NewLane(s Stream) (Stream, error)
	// EndLane gives a lane up and waits for nothing: what is queued on it goes on. What
	// of that fails, or has and was not reported, is from then on s's where keep is
	// true, and nobody's else.
	EndLane(lane Stream, keep bool)
}

// Event is a mark in a stream.
type Event uintptr

// Blocks is a number of equal pieces of memory at equal distances.
type Blocks struct {
	Bytes  int64 // a block
	Stride int64 // from one to the next in device memory, at least Bytes
	Count  int
}

// Size is the bytes of all blocks.
func (b Blocks) Size() int64 { return b.Bytes * int64(b.Count) }

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
	Dims    [5]int64      // elements, 1 to 1<<32
	Strides [4]int64      // bytes from one index of dimensions 1 to 4 to the next: multiples of 16 below 1<<40, in any order
	Box     [5]int        // elements; Box[0] is 64, a row of the swizzle, the others are 1 to 256
}

// Check returns an error for a map that no device takes.
func (t TensorMap) Check() error {
	if t.Base == 0 || t.Base%16 != 0 {
		return fmt.Errorf("tensor map: base %#x is not a multiple of 16, or null", uint64(t.Base))
	}
	for i, n := range t.Dims {
		if n < 1 || n > 1<<32 {
			return fmt.Errorf("tensor map: dimension %d has %d elements; 1 to 1<<32 are possible", i, n)
		}
	}
	for i, n := range t.Strides {
		if n < 1 || n >= 1<<40 || n%16 != 0 {
			return fmt.Errorf("tensor map: dimension %d has a stride of %d bytes; it must be a multiple of 16 from 16 to below 1<<40", i+1, n)
		}
	}
	if t.Box[0] != 64 {
		return fmt.Errorf("tensor map: a row of the box has %d elements; it must have the 64 of a 128-byte swizzle", t.Box[0])
	}
	for i, n := range t.Box[1:] {
		if n < 1 || n > 256 {
			return fmt.Errorf("tensor map: the box has %d elements of dimension %d; 1 to 256 are possible", n, i+1)
		}
	}
	return nil
}
