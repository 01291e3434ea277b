package serve

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// buffer is device memory that grows.
type buffer struct {
	ptr   abi.DevicePtr
	bytes int64
}

// grow makes the buffer hold n bytes, and some more where it will grow again.
// What it held is lost, when the work on the engine's stream is done.
func (b *buffer) grow(ctx context.Context, e *Engine, n int64, again bool) error {
	if n <= b.bytes {
		return nil
	}
	if b.ptr != 0 {
		if err := e.device.Synchronize(ctx, e.stream); err != nil {
			return launchError(err)
		}
		if err := e.device.Free(b.ptr); err != nil {
			return err
		}
		*b = buffer{}
	}
	if again {
		n += n / 4
	}
	ptr, err := e.device.Alloc(n)
	if err != nil {
		return err
	}
	*b = buffer{ptr, n}
	return nil
}

func (b *buffer) release(dev cuda.Device) error {
	if b.ptr == 0 {
		return nil
	}
	ptr := b.ptr
	*b = buffer{}
	return dev.Free(ptr)
}

// hostBuffer is memory to upload from, page-locked where the device copies on
// a stream.
type hostBuffer struct {
	data   []byte
	locked bool
}

// grow makes room for n bytes and keeps those that there are. No copy from the
// buffer may be under way.
func (b *hostBuffer) grow(dev cuda.Device, n int) error {
	if n <= cap(b.data) {
		return nil
	}
	n += n / 2
	copier, ok := dev.(cuda.Copier)
	if !ok {
		grown := make([]byte, len(b.data), n)
		copy(grown, b.data)
		b.data = grown
		return nil
	}
	grown, err := copier.AllocHost(int64(n))
	if err != nil {
		return err
	}
	old := *b
	b.data, b.locked = grown[:copy(grown, b.data)], true
	return old.release(dev)
}

// upload copies the buffer to the device, ordered on the stream.
func (b *hostBuffer) upload(dev cuda.Device, s cuda.Stream, dst abi.DevicePtr) error {
	copier, ok := dev.(cuda.Copier)
	if !ok {
		return dev.Upload(dst, b.data)
	}
	n := len(b.data)
	return copier.CopyFromHostAsync(s, dst, b.data, cuda.Blocks{Bytes: int64(n), Stride: int64(n), Count: 1})
}

func (b *hostBuffer) release(dev cuda.Device) error {
	data := b.data[:cap(b.data)]
	locked := b.locked
	*b = hostBuffer{}
	if !locked {
		return nil
	}
	return dev.(cuda.Copier).FreeHost(data)
}

// packer lays lists out one behind the other.
type packer struct {
	host   *hostBuffer // up to the end of the last list
	device cuda.Device
	end    int // the capacity of the last list included
	err    error
}

const listAlignment = 256

// pack adds a list and returns its offset. The next list begins behind the
// capacity, in elements, or where that is 0, behind the list.
func pack[T any](p *packer, list []T, capacity int) abi.DevicePtr {
	if capacity > 0 && len(list) > capacity {
		p.err = errors.Join(p.err, fmt.Errorf("%w: a list of %d %T, there is room for %d", ErrFixedSize, len(list), *new(T), capacity))
		return 0
	}
	offset := (p.end + listAlignment - 1) / listAlignment * listAlignment
	data := bytesOf(list)
	if err := p.host.grow(p.device, offset+len(data)); err != nil {
		p.err = errors.Join(p.err, err)
		return 0
	}
	p.host.data = p.host.data[:offset+len(data)]
	copy(p.host.data[offset:], data)
	p.end = offset + max(len(data), capacity*int(unsafe.Sizeof(*new(T))))
	return abi.DevicePtr(offset)
}
