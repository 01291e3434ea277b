package kvcache_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// device is memory that can be made to fail. What is queued on it lands as
// late as it may: when somebody waits.
type device struct {
	mu      sync.Mutex
	queue   []func()
	next    abi.DevicePtr
	regions map[abi.DevicePtr][]byte
	host    map[*byte]int
	calls   int
	fail    func(call string, n int) error // n: calls so far, this one included
}

func newDevice() *device {
	return &device{next: 1 << 40, regions: map[abi.DevicePtr][]byte{}, host: map[*byte]int{}}
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

// land does what is queued.
func (d *device) land() {
	for _, f := range d.queue {
		f()
	}
	d.queue = d.queue[:0]
}

// launch queues what a kernel does.
func (d *device) launch(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, f)
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
	d.land()
	delete(d.regions, p)
	return err
}

func (d *device) Upload(dst abi.DevicePtr, src []byte) error {
	err := d.call("Upload")
	defer d.mu.Unlock()
	if err == nil {
		d.land()
		copy(d.at(dst, int64(len(src))), src)
	}
	return err
}

func (d *device) Download(dst []byte, src abi.DevicePtr) error {
	err := d.call("Download")
	defer d.mu.Unlock()
	if err == nil {
		d.land()
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
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		d.land()
	}
	return err
}

// copier is a device that copies on the stream.
type copier struct {
	*device
}

var _ cuda.Copier = copier{}

func (d copier) AllocHost(bytes int64) ([]byte, error) {
	err := d.call("AllocHost")
	defer d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	memory := make([]byte, bytes)
	d.host[&memory[0]] = len(memory)
	return memory, nil
}

func (d copier) FreeHost(memory []byte) error {
	err := d.call("FreeHost")
	defer d.mu.Unlock()
	if d.host[&memory[0]] != len(memory) {
		panic("FreeHost of what AllocHost did not return")
	}
	delete(d.host, &memory[0])
	return err
}

func (d copier) CopyAsync(_ cuda.Stream, dst, src abi.DevicePtr, b cuda.Blocks) error {
	return d.enqueue("CopyAsync", b, func(i, offset int64) {
		copy(d.at(dst+abi.DevicePtr(offset), b.Bytes), d.at(src+abi.DevicePtr(offset), b.Bytes))
	})
}

func (d copier) CopyToHostAsync(_ cuda.Stream, dst []byte, src abi.DevicePtr, b cuda.Blocks) error {
	return d.enqueue("CopyToHostAsync", b, func(i, offset int64) {
		copy(dst[i*b.Bytes:][:b.Bytes], d.at(src+abi.DevicePtr(offset), b.Bytes))
	})
}

func (d copier) CopyFromHostAsync(_ cuda.Stream, dst abi.DevicePtr, src []byte, b cuda.Blocks) error {
	return d.enqueue("CopyFromHostAsync", b, func(i, offset int64) {
		copy(d.at(dst+abi.DevicePtr(offset), b.Bytes), src[i*b.Bytes:][:b.Bytes])
	})
}

func (d copier) enqueue(name string, b cuda.Blocks, f func(i, offset int64)) error {
	err := d.call(name)
	defer d.mu.Unlock()
	if err == nil {
		d.queue = append(d.queue, func() {
			for i := range int64(b.Count) {
				f(i, i*b.Stride)
			}
		})
	}
	return err
}
