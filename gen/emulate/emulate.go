// Package emulate is a device that runs generated CUDA sources on the CPU.
//
// A C++ compiler makes a library of the very source that a GPU would run, and
// a separate process runs it with each CUDA thread as a fiber; what is modelled
// stands at the top of templates/emu/emulator.hpp. The process ends with the
// device, and no mistake of a kernel ends the process.
//
// It needs Linux on amd64 or arm64 (elsewhere on Linux it is slow) and g++ or
// clang++.
package emulate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Options says how a device runs. CacheDir alone must be set.
type Options struct {
	CXX         string        // compiler; empty: the first of c++, g++ and clang++ that is in PATH
	CacheDir    string        // directory for what the compiler makes; made if absent
	Seed        uint64        // of the order of threads, warps and blocks; each launch draws its own from it
	LaunchLimit time.Duration // processor time of one launch; 0: five minutes

	// Unoptimized kernels compile in about half the time, and launches take up to twice as
	// long: for many kernels that are launched a few times each. The checks are the same, and one is
	// made of these alone: that warps of a warpgroup come to one line's product by the same calls.
	Unoptimized bool

	// Compute capability that Info gives. 0.0 is 9.0: the emulator runs every
	// family's kernels.
	Major, Minor int
}

// Limits of a launch, those of an H200.
const (
	maxThreads     = 1024
	maxShared      = 232448
	maxGridYZ      = 65535
	maxBlocks      = 1<<31 - 1
	defaultLimit   = 5 * time.Minute
	warpSize       = 32
	defaultMajor   = 9
	bytesPerMemory = 1 << 36
)

// Device is an emulated device. Launches run at once, one after another, and
// their errors come from Launch itself, so that every stream is always idle.
type Device struct {
	build build
	host  *host
	seed  uint64
	limit time.Duration

	major, minor int

	mu       sync.Mutex
	launches uint64
	counters Counters
}

var _ cuda.TensorMapper = (*Device)(nil)

// Open builds the emulator's process where the cache does not have it, and
// starts it. The process is killed when ctx ends.
func Open(ctx context.Context, o Options) (*Device, error) {
	b, err := newBuild(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("emulate: %w", err)
	}
	path, err := b.host(ctx)
	if err != nil {
		return nil, fmt.Errorf("emulate: build the emulator: %w", err)
	}
	h, err := startHost(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("emulate: start the emulator: %w", err)
	}
	if o.LaunchLimit <= 0 {
		o.LaunchLimit = defaultLimit
	}
	if o.Major == 0 {
		o.Major = defaultMajor
	}
	return &Device{build: b, host: h, seed: o.Seed, limit: o.LaunchLimit, major: o.Major, minor: o.Minor}, nil
}

// Info describes the device as one multiprocessor that runs sources.
func (d *Device) Info() cuda.Info {
	return cuda.Info{
		Name:            "kgen emulator",
		Major:           d.major,
		Minor:           d.minor,
		Multiprocessors: 1,
		SharedPerBlock:  maxShared,
		L2Bytes:         0,
		MemoryBytes:     bytesPerMemory,
		Driver:          d.build.compiler,
		EmulatesSource:  true,
	}
}

// Alloc returns a buffer of bytes 0xFF. It is aligned to 16 bytes only, so that
// its end, rounded up to that, is the end of what may be touched.
func (d *Device) Alloc(bytes int64) (abi.DevicePtr, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("emulate: Alloc of %d bytes: must be positive", bytes)
	}
	p, err := d.host.call(callAllocate, []uint64{uint64(bytes)}, nil, nil)
	if err != nil {
		return 0, fmt.Errorf("emulate: Alloc: %w", err)
	}
	return abi.DevicePtr(p), nil
}

// Free gives a buffer back; a later access to it is an error. Zero is ignored.
func (d *Device) Free(p abi.DevicePtr) error {
	if p == 0 {
		return nil
	}
	return d.do("Free", callFree, []uint64{uint64(p)}, nil, nil)
}

// Upload copies src to dst, which may lie inside a buffer.
func (d *Device) Upload(dst abi.DevicePtr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return d.do("Upload", callUpload, []uint64{uint64(dst)}, src, nil)
}

// Download copies src, which may lie inside a buffer, to dst.
func (d *Device) Download(dst []byte, src abi.DevicePtr) error {
	if len(dst) == 0 {
		return nil
	}
	return d.do("Download", callDownload, []uint64{uint64(src), uint64(len(dst))}, nil, dst)
}

// Fill sets n bytes.
func (d *Device) Fill(_ cuda.Stream, dst abi.DevicePtr, value byte, n int64) error {
	if n == 0 {
		return nil
	}
	return d.do("Fill", callFill, []uint64{uint64(dst), uint64(n), uint64(value)}, nil, nil)
}

func (d *Device) do(name string, c call, arguments []uint64, in, out []byte) error {
	if _, err := d.host.call(c, arguments, in, out); err != nil {
		return fmt.Errorf("emulate: %s: %w", name, err)
	}
	return nil
}

// NewStream returns the default stream: launches run one after another anyway.
func (d *Device) NewStream() (cuda.Stream, error) { return 0, nil }

// DestroyStream does nothing.
func (d *Device) DestroyStream(cuda.Stream) error { return nil }

// Synchronize returns at once: launches have run when Launch returns.
func (d *Device) Synchronize(ctx context.Context, _ cuda.Stream) error { return ctx.Err() }

// Time returns the time that f takes on this machine.
func (d *Device) Time(ctx context.Context, _ cuda.Stream, f func() error) (time.Duration, error) {
	start := time.Now()
	err := errors.Join(f(), ctx.Err())
	return time.Since(start), err
}

// Close ends the process. Its memory and modules are gone.
func (d *Device) Close() error { return d.host.close() }

// Counters says what launches did.
type Counters struct {
	Blocks   uint64
	Barriers uint64 // sync_threads, one a block

	WarpBarriers uint64 // sync_warp, one a warp, as the next three
	Shuffles     uint64
	LdMatrices   uint64
	MMAs         uint64

	CopyBytes        uint64 // read by cp_async_16
	LoadBytes        uint64 // load_16 from global memory
	StoreBytes       uint64 // store_16 to global memory
	SharedLoadBytes  uint64 // load_16 from shared memory
	SharedStoreBytes uint64 // store_16 to shared memory

	WGMMAs          uint64 // one a warpgroup
	TensorCopyBytes uint64 // written by tensor_copy
	SharedCopyBytes uint64 // by shared_copy_to
}

// TakeCounters returns the sums over the launches that succeeded since the
// last call, and starts again from zero.
func (d *Device) TakeCounters() Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counters
	d.counters = Counters{}
	return c
}

func (c *Counters) add(x Counters) {
	c.Blocks += x.Blocks
	c.Barriers += x.Barriers
	c.WarpBarriers += x.WarpBarriers
	c.Shuffles += x.Shuffles
	c.LdMatrices += x.LdMatrices
	c.MMAs += x.MMAs
	c.CopyBytes += x.CopyBytes
	c.LoadBytes += x.LoadBytes
	c.StoreBytes += x.StoreBytes
	c.SharedLoadBytes += x.SharedLoadBytes
	c.SharedStoreBytes += x.SharedStoreBytes
	c.WGMMAs += x.WGMMAs
	c.TensorCopyBytes += x.TensorCopyBytes
	c.SharedCopyBytes += x.SharedCopyBytes
}

// supported says whether this package runs here at all.
func supported() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the emulator runs on Linux, not on %s", runtime.GOOS)
	}
	return nil
}
