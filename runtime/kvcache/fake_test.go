package kvcache_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// device is memory that can be made to fail. It runs no kernels.
type device struct {
	mu      sync.Mutex
	next    abi.DevicePtr
	regions map[abi.DevicePtr][]byte
	host    map[*byte]int64
	calls   int
	fail    func(call string, n int) error // n: calls so far, this one included
}

func newDevice() *device {
	return &device{next: 1 << 40, regions: map[abi.DevicePtr][]byte{}, host: map[*byte]int64{}}
}

// call counts a call and fails it if that is wished. It takes the lock.
func (d *device) call(name string) error {
	d.mu.Lock()
	d.calls++
	if d.fail == nil {
		return nil
	}
	return d.fail(name, d.calls)
}

// at is the memory from an address on; a wrong address is a test's failure.
func (d *device) at(p abi.DevicePtr, n int64) []byte {
	for base, region := range d.regions {
		if p >= base && int64(p-base)+n <= int64(len(region)) {
			return region[p-base:][:n]
		}
	}
	panic(fmt.Sprintf("%d bytes at %#x are outside every allocation", n, p))
}

func (d *device) Info() cuda.Info { return cuda.Info{Name: "memory"} }

func (d *device) Alloc(bytes int64) (abi.DevicePtr, error) {
	err := d.call("Alloc")
	defer d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	p := d.next
	d.next += abi.DevicePtr(bytes+4095) &^ 4095
	d.regions[p] = make([]byte, bytes)
	return p, nil
}

func (d *device) Free(p abi.DevicePtr) error {
	err := d.call("Free")
	defer d.mu.Unlock()
	delete(d.regions, p)
	return err
}

func (d *device) Upload(dst abi.DevicePtr, src []byte) error {
	err := d.call("Upload")
	defer d.mu.Unlock()
	if err == nil {
		copy(d.at(dst, int64(len(src))), src)
	}
	return err
}

func (d *device) Download(dst []byte, src abi.DevicePtr) error {
	err := d.call("Download")
	defer d.mu.Unlock()
	if err == nil {
		copy(dst, d.at(src, int64(len(dst))))
	}
	return err
}

func (d *device) Fill(cuda.Stream, abi.DevicePtr, byte, int64) error { panic("not used") }
func (d *device) Load(cuda.Image) (cuda.Module, error)               { panic("not used") }
func (d *device) NewStream() (cuda.Stream, error)                    { return 0, nil }
func (d *device) DestroyStream(cuda.Stream) error                    { return nil }
func (d *device) Close() error                                       { return nil }
func (d *device) Time(context.Context, cuda.Stream, func() error) (time.Duration, error) {
	panic("not used")
}

func (d *device) Synchronize(ctx context.Context, _ cuda.Stream) error {
	err := d.call("Synchronize")
	defer d.mu.Unlock()
	if err != nil {
		return err
	}
	return ctx.Err()
}
