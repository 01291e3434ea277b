// Package cuda is the seam between kgen and a device: a small interface that
// the CUDA driver, the emulator and test fakes implement.
package cuda

import (
	"context"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Device is a place where kernels run. Its methods are safe for concurrent
// use. Every error names the call that failed.
type Device interface {
	Info() Info
	// Alloc returns bytes of device memory, contents undefined, aligned to 256
	// bytes (an emulator may align less). bytes must be positive.
	Alloc(bytes int64) (abi.DevicePtr, error)
	Free(p abi.DevicePtr) error
	// Upload and Download copy synchronously, after the work already launched.
	Upload(dst abi.DevicePtr, src []byte) error
	Download(dst []byte, src abi.DevicePtr) error
	// Fill sets n bytes, ordered on the stream.
	Fill(s Stream, dst abi.DevicePtr, value byte, n int64) error
	Load(image Image) (Module, error)
	// NewStream makes a stream; the zero Stream is the device's default one.
	NewStream() (Stream, error)
	DestroyStream(s Stream) error
	// Synchronize waits for the stream's work and reports its first failure.
	Synchronize(ctx context.Context, s Stream) error
	// Time runs f, which launches on s, and returns the device time of what it
	// launched. Devices without a clock of their own return their host's time.
	Time(ctx context.Context, s Stream, f func() error) (time.Duration, error)
	Close() error
}

// Stream is an ordered queue of work on a device.
type Stream uintptr

// Info describes a device.
type Info struct {
	Name            string // as the driver gives it, such as "NVIDIA H200"
	Major, Minor    int    // compute capability
	Multiprocessors int
	SharedPerBlock  int    // largest dynamic shared memory of a block, bytes
	L2Bytes         int64  // size of the L2 cache
	MemoryBytes     int64  // size of the device memory
	Driver          string // its version of CUDA, and its release where that is known
	EmulatesSource  bool   // true: Load takes Image.Source; false: Image.Cubin
}

// Image is one kernel's code in the forms a device may want.
type Image struct {
	Name   string // file name without extension, for messages
	Source []byte // generated CUDA C++
	Cubin  []byte // machine code for the device's target
}

// Module is loaded code.
type Module interface {
	Kernel(entry string) (Kernel, error)
	Unload() error
}

// Kernel is an entry point that takes one parameter struct by value.
type Kernel interface {
	// Launch queues the kernel on the stream. params is the struct's bytes.
	Launch(s Stream, c LaunchConfig, params []byte) error
}

// LaunchConfig is the geometry of one launch.
type LaunchConfig struct {
	GridX, GridY, GridZ int
	Threads             int // per block
	SharedBytes         int // dynamic shared memory per block
	// Early lets the kernel start before the one ahead of it on the stream has ended, if
	// that allows it and the device can. The kernel must then wait by itself
	// (griddepcontrol.wait) before it uses what work ahead made, and before it ends.
	Early bool
}
