package serve

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/schedule"
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
	grown  int // times that it was
}

// grow makes room for n bytes and keeps those that there are. No copy from the
// buffer may be under way.
func (b *hostBuffer) grow(dev cuda.Device, n int) error {
	if n <= cap(b.data) {
		return nil
	}
	n += n / 2
	b.grown++
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
	*b = hostBuffer{grown: b.grown}
	if !locked {
		return nil
	}
	return dev.(cuda.Copier).FreeHost(data)
}

// packer lays lists out one behind the other.
type packer struct {
	host   *hostBuffer // up to the end of the last list
	pass   uint64      // counts those of the host's memory
	device cuda.Device
	end    int // the capacity of the last list included
	err    error
}

const listAlignment = 256

// pack adds a list and returns its offset. The next list begins behind the
// capacity, in elements, which the field of GraphSize decides, or where that is 0, behind the list.
func pack[T any](p *packer, list []T, capacity int, field string) abi.DevicePtr {
	offset, ok := reserve(p, list, capacity, field, p.end)
	if ok {
		copy(p.host.data[offset:], bytesOf(list))
	}
	return abi.DevicePtr(offset)
}

// reserve makes room for a list, behind from.
func reserve[T any](p *packer, list []T, capacity int, field string, from int) (offset int, ok bool) {
	size := int(unsafe.Sizeof(*new(T)))
	if capacity > 0 && len(list) > capacity {
		p.err = errors.Join(p.err, fmt.Errorf("%w: a list of %d %T, there is room for %d: raise GraphSize.%s",
			ErrFixedSize, len(list), *new(T), capacity, field))
		return 0, false
	}
	offset = (from + listAlignment - 1) / listAlignment * listAlignment
	if err := p.host.grow(p.device, offset+len(list)*size); err != nil {
		p.err = errors.Join(p.err, err)
		return 0, false
	}
	p.host.data = p.host.data[:offset+len(list)*size]
	p.end = offset + max(len(list), capacity)*size
	return offset, true
}

// packed is a list that is mostly, from step to step, what it was: which of those of its maker
// is in the host's memory, and where.
type packed struct {
	number uint64 // 0: none
	pass   uint64 // of the packer
	grown  int    // of the memory
	offset int
}

// packChanged is pack for such a list, the number-th of its maker, of which only what has changed
// since the one before is copied, where that is in the memory. It stays in its place while
// the lists before it leave no large gap.
func packChanged[T any](p *packer, was *packed, number uint64, list []T, changed []schedule.Span, capacity int, field string) abi.DevicePtr {
	from := p.end
	if was.offset >= from && was.offset-from <= from/8 {
		from = was.offset
	}
	offset, ok := reserve(p, list, capacity, field, from)
	if !ok {
		return 0
	}
	// Since any pass before the last, other lists may have been written there.
	if *was != (packed{number - 1, p.pass - 1, p.host.grown, offset}) || was.number == 0 {
		changed = []schedule.Span{{End: int32(len(list))}}
	}
	*was = packed{number, p.pass, p.host.grown, offset}
	size := int(unsafe.Sizeof(*new(T)))
	for _, c := range changed {
		copy(p.host.data[offset+int(c.Begin)*size:], bytesOf(list[c.Begin:c.End]))
	}
	return abi.DevicePtr(offset)
}
