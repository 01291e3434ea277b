// Package device is a cuda.Device on an NVIDIA GPU over a table of libcuda's
// functions. How they are called is the business of who fills the table.
//
// A CUDA context is current per OS thread, and goroutines move between
// threads. Every call here therefore pins its goroutine to the thread, makes
// the device's primary context current, and calls: two calls into C that cost
// well under a microsecond together. A thread of its own for the context would
// cost two handovers between threads instead, each dearer than the launch.
// libcuda itself is safe to call from many threads at once.
package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// device is a primary context.
type device struct {
	lib     *Library
	handle  int32
	context uintptr
	info    cuda.Info

	maxPitch int  // of a copy in blocks
	early    bool // whether a kernel can start before the one ahead of it has ended

	mu     sync.RWMutex // held for reading during each driver call
	closed bool
}

var (
	_ cuda.GraphDevice    = (*device)(nil)
	_ cuda.Copier         = (*device)(nil)
	_ cuda.StreamFollower = (*device)(nil)
	_ cuda.MemoryDevice   = (*device)(nil)
	_ cuda.TensorMapper   = (*device)(nil)
)

// Open opens the GPU with the given ordinal, counted from 0 over those that
// the driver shows to this process. Without a driver or a GPU the error wraps
// [cuda.ErrNoDevice]. The device also implements [cuda.GraphDevice],
// [cuda.Copier], [cuda.StreamFollower], [cuda.MemoryDevice] and [cuda.TensorMapper].
//
// Streams made by NewStream order themselves against the default stream, so
// Upload and Download, which use that one, come after the work on all of them.
func Open(ctx context.Context, l *Library, ordinal int) (cuda.Device, error) {
	d, err := open(ctx, l, ordinal)
	if err != nil {
		return nil, fmt.Errorf("open CUDA device %d: %w", ordinal, err)
	}
	return d, nil
}

func open(ctx context.Context, l *Library, ordinal int) (*device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := l.fail("cuInit", l.Init(0)); err != nil {
		return nil, err
	}
	var count int32
	if err := l.fail("cuDeviceGetCount", l.DeviceGetCount(&count)); err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= int(count) {
		return nil, fmt.Errorf("%w: cuDeviceGetCount: the driver shows %d to this process", cuda.ErrNoDevice, count)
	}
	d := &device{lib: l}
	if err := l.fail("cuDeviceGet", l.DeviceGet(&d.handle, int32(ordinal))); err != nil {
		return nil, err
	}
	if err := d.readInfo(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // making a context takes long
		return nil, err
	}
	if err := l.fail("cuDevicePrimaryCtxRetain", l.ContextRetain(&d.context, d.handle)); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *device) readInfo() error {
	var name [257]byte
	if err := d.lib.fail("cuDeviceGetName", d.lib.DeviceGetName(&name[0], int32(len(name)-1), d.handle)); err != nil {
		return err
	}
	d.info.Name = GoString(&name[0])
	for attribute, field := range map[int32]*int{
		attributeMultiprocessors: &d.info.Multiprocessors,
		attributeMaxPitch:        &d.maxPitch,
		attributeMajor:           &d.info.Major,
		attributeMinor:           &d.info.Minor,
		attributeSharedOptin:     &d.info.SharedPerBlock,
	} {
		v, err := d.attribute(attribute)
		if err != nil {
			return err
		}
		*field = int(v)
	}
	l2, err := d.attribute(attributeL2Bytes)
	if err != nil {
		return err
	}
	d.info.L2Bytes = int64(l2)
	var memory uint64
	if err := d.lib.fail("cuDeviceTotalMem", d.lib.DeviceTotalMem(&memory, d.handle)); err != nil {
		return err
	}
	d.info.MemoryBytes = int64(memory)
	var version int32
	if err := d.lib.fail("cuDriverGetVersion", d.lib.DriverGetVersion(&version)); err != nil {
		return err
	}
	// Older drivers have no such dependency in a graph, and launches may be captured.
	const dependenciesInGraphs = 12030
	d.early = d.info.Major >= 9 && version >= dependenciesInGraphs && d.lib.LaunchKernelEx != nil
	release, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		release = nil // another system, or one that hides it: the version of CUDA must do
	}
	d.info.Driver = driverText(version, string(release))
	return nil
}

// driverText is a driver's version of CUDA, and its release where the system tells it:
// several releases have one version of CUDA, and may differ in speed.
func driverText(version int32, release string) string {
	text := fmt.Sprintf("CUDA %d.%d", version/1000, version%1000/10)
	if release = strings.TrimSpace(release); release != "" {
		text += ", " + release
	}
	return text
}

func (d *device) attribute(attribute int32) (int32, error) {
	var v int32
	err := d.lib.fail("cuDeviceGetAttribute", d.lib.DeviceGetAttribute(&v, attribute, d.handle))
	if err != nil {
		err = fmt.Errorf("attribute %d: %w", attribute, err)
	}
	return v, err
}

// do makes one driver call with the context current.
func (d *device) do(call string, f func(l *Library) Code) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return fmt.Errorf("%s: %w", call, cuda.ErrClosed)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if c := d.lib.ContextSetCurrent(d.context); c != Success {
		return d.lib.fail("cuCtxSetCurrent", c)
	}
	return d.lib.fail(call, f(d.lib))
}

func (d *device) Info() cuda.Info { return d.info }

// Close gives the primary context back. Memory, modules and streams that are
// still held go with it, unless another user of the process holds the context.
func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("cuDevicePrimaryCtxRelease: %w", cuda.ErrClosed)
	}
	d.closed = true
	return d.lib.fail("cuDevicePrimaryCtxRelease", d.lib.ContextRelease(d.handle))
}

func (d *device) Alloc(n int64) (abi.DevicePtr, error) {
	if n <= 0 {
		return 0, fmt.Errorf("cuMemAlloc: %d bytes: must be positive", n)
	}
	var p uint64
	err := d.do("cuMemAlloc", func(l *Library) Code { return l.MemAlloc(&p, uint64(n)) })
	switch {
	case errors.Is(err, cuda.ErrOutOfMemory):
		if free, total, e := d.Memory(); e == nil {
			return 0, fmt.Errorf("%w: wanted %d bytes, %d of %d are free", err, n, free, total)
		}
		return 0, fmt.Errorf("%w: wanted %d bytes", err, n)
	case err != nil:
		return 0, err
	}
	return abi.DevicePtr(p), nil
}

func (d *device) Free(p abi.DevicePtr) error {
	return d.do("cuMemFree", func(l *Library) Code { return l.MemFree(uint64(p)) })
}

func (d *device) Memory() (free, total int64, err error) {
	var f, t uint64
	if err := d.do("cuMemGetInfo", func(l *Library) Code { return l.MemGetInfo(&f, &t) }); err != nil {
		return 0, 0, err
	}
	return int64(f), int64(t), nil
}

func (d *device) Load(image cuda.Image) (cuda.Module, error) {
	if len(image.Cubin) == 0 {
		return nil, fmt.Errorf("cuModuleLoadDataEx: %s: no machine code", image.Name)
	}
	image8 := image.Cubin
	if !bytes.HasPrefix(image8, []byte("\x7fELF")) { // PTX text ends with a NUL
		image8 = append(bytes.Clone(image8), 0)
	}
	buffer := make([]byte, 8<<10)
	log := NewJITLog(buffer[:len(buffer)-1])
	m := &module{device: d}
	err := d.do("cuModuleLoadDataEx", func(l *Library) Code {
		return l.ModuleLoadDataEx(&m.handle, image8, log)
	})
	if err != nil {
		if text := bytes.TrimSpace([]byte(GoString(&buffer[0]))); len(text) > 0 {
			return nil, fmt.Errorf("%s on %s: %w:\n%s", image.Name, d.info.Name, err, text)
		}
		return nil, fmt.Errorf("%s on %s: %w", image.Name, d.info.Name, err)
	}
	return m, nil
}

func (d *device) NewStream() (cuda.Stream, error) {
	var s uintptr
	err := d.do("cuStreamCreate", func(l *Library) Code { return l.StreamCreate(&s, 0) })
	if err != nil {
		return 0, err
	}
	return cuda.Stream(s), nil
}

func (d *device) DestroyStream(s cuda.Stream) error {
	if s == 0 {
		return errors.New("cuStreamDestroy: the default stream stays")
	}
	return d.do("cuStreamDestroy", func(l *Library) Code { return l.StreamDestroy(uintptr(s)) })
}

// Synchronize asks the driver again and again, first without a pause and then
// at intervals that grow with the time waited, up to a millisecond: a wait
// inside the driver could not be given up when ctx ends.
func (d *device) Synchronize(ctx context.Context, s cuda.Stream) error {
	return d.poll(ctx, "cuStreamQuery", func(l *Library) Code { return l.StreamQuery(uintptr(s)) })
}

func (d *device) poll(ctx context.Context, call string, query func(l *Library) Code) error {
	start := time.Now()
	for {
		var c Code
		err := d.do(call, func(l *Library) Code {
			if c = query(l); c == NotReady {
				return Success
			}
			return c
		})
		if err != nil || c == Success {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: work on the stream has not ended: %w", call, err)
		}
		if waited := time.Since(start); waited < 100*time.Microsecond {
			runtime.Gosched()
		} else {
			time.Sleep(min(waited/8, time.Millisecond))
		}
	}
}
