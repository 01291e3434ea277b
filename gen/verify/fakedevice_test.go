package verify_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// hostDevice is a cuda.Device in host memory. It loads no code: the kernels of
// a test are Go functions over its memory.
type hostDevice struct {
	allocations atomic.Pointer[[]allocation] // by address; what it points to does not change: each access reads it

	mu   sync.Mutex // of those that allocate and free
	next abi.DevicePtr
}

type allocation struct {
	base abi.DevicePtr
	data []byte
}

func (d *hostDevice) Info() cuda.Info {
	return cuda.Info{Name: "host memory"}
}

func (d *hostDevice) Alloc(bytes int64) (abi.DevicePtr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = (d.next + 1<<20) &^ 255
	base := d.next
	d.next += abi.DevicePtr(bytes)
	all := append(slices.Clone(d.all()), allocation{base, make([]byte, bytes)})
	d.allocations.Store(&all)
	return base, nil
}

func (d *hostDevice) Free(p abi.DevicePtr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, a := range d.all() {
		if a.base == p {
			rest := slices.Delete(slices.Clone(d.all()), i, i+1)
			d.allocations.Store(&rest)
			return nil
		}
	}
	return fmt.Errorf("free %#x: no such allocation", p)
}

func (d *hostDevice) all() []allocation {
	if p := d.allocations.Load(); p != nil {
		return *p
	}
	return nil
}

// bytes is the memory from p on, n bytes. It panics outside an allocation.
func (d *hostDevice) bytes(p abi.DevicePtr, n int) []byte {
	all := d.all()
	i := sort.Search(len(all), func(i int) bool { return all[i].base > p }) - 1
	if i < 0 || p+abi.DevicePtr(n) > all[i].base+abi.DevicePtr(len(all[i].data)) {
		panic(fmt.Sprintf("access to %d bytes at %#x", n, p))
	}
	return all[i].data[p-all[i].base:][:n]
}

func (d *hostDevice) Upload(dst abi.DevicePtr, src []byte) error {
	copy(d.bytes(dst, len(src)), src)
	return nil
}

func (d *hostDevice) Download(dst []byte, src abi.DevicePtr) error {
	copy(dst, d.bytes(src, len(dst)))
	return nil
}

func (d *hostDevice) Fill(_ cuda.Stream, dst abi.DevicePtr, value byte, n int64) error {
	for i, p := 0, d.bytes(dst, int(n)); i < len(p); i++ {
		p[i] = value
	}
	return nil
}

func (d *hostDevice) Load(cuda.Image) (cuda.Module, error) {
	return nil, fmt.Errorf("load: not a device for code")
}
func (d *hostDevice) NewStream() (cuda.Stream, error) { return 0, nil }
func (d *hostDevice) DestroyStream(cuda.Stream) error { return nil }
func (d *hostDevice) Synchronize(ctx context.Context, _ cuda.Stream) error {
	return ctx.Err()
}
func (d *hostDevice) Time(_ context.Context, _ cuda.Stream, f func() error) (time.Duration, error) {
	return 0, f()
}
func (d *hostDevice) Close() error { return nil }

// Typed views: element i of an array in device memory.

func (d *hostDevice) int32At(p abi.DevicePtr, i int) int32 {
	return int32(binary.LittleEndian.Uint32(d.bytes(p+abi.DevicePtr(4*i), 4)))
}

func (d *hostDevice) float32At(p abi.DevicePtr, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(d.bytes(p+abi.DevicePtr(4*i), 4)))
}

func (d *hostDevice) putFloat32(p abi.DevicePtr, i int, x float32) {
	binary.LittleEndian.PutUint32(d.bytes(p+abi.DevicePtr(4*i), 4), math.Float32bits(x))
}

// structs decodes n structs of an array.
func structs[T any](d *hostDevice, p abi.DevicePtr, n int) []T {
	s := make([]T, n)
	if n > 0 {
		if _, err := binary.Decode(d.bytes(p, binary.Size(s)), binary.LittleEndian, s); err != nil {
			panic(err)
		}
	}
	return s
}
