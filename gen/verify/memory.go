package verify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/rope"
)

// poison fills memory that nothing wrote yet: NaN in every element type.
const poison = 0xff

// arena is the device memory of one case.
type arena struct {
	dev     cuda.Device
	guard   int64 // poisoned bytes on both sides of a buffer
	buffers []*buffer
	maps    []*kernel.CacheMaps
}

// newArena returns an empty arena. An emulator finds accesses outside a buffer
// itself, reads too, so nothing is put around its buffers.
func newArena(dev cuda.Device) *arena {
	a := &arena{dev: dev, guard: 4096}
	if dev.Info().EmulatesSource {
		a.guard = 0
	}
	return a
}

// buffer is some device memory between two guards.
type buffer struct {
	name  string
	arena *arena
	base  abi.DevicePtr // of the first guard
	ptr   abi.DevicePtr
	bytes int64
}

// alloc returns poisoned memory.
func (a *arena) alloc(name string, n int) (*buffer, error) {
	b := &buffer{name: name, arena: a, bytes: max(int64(n), 1)}
	var err error
	if b.base, err = a.dev.Alloc(b.bytes + 2*a.guard); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.ptr = b.base + abi.DevicePtr(a.guard)
	a.buffers = append(a.buffers, b)
	return b, b.poison()
}

// upload returns memory that holds data: bytes, or what encoding/binary writes.
func (a *arena) upload(name string, data any) (*buffer, error) {
	n := binary.Size(data)
	if n < 0 {
		return nil, fmt.Errorf("%s: %T has no fixed size", name, data)
	}
	b, err := a.alloc(name, n)
	if err != nil {
		return b, err
	}
	return b, b.write(data)
}

// write makes the buffer hold data, as upload takes it, from its start on.
func (b *buffer) write(data any) error {
	raw, ok := data.([]byte)
	if !ok {
		var err error
		if raw, err = binary.Append(nil, binary.LittleEndian, data); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	if len(raw) == 0 {
		return nil
	}
	if err := b.arena.dev.Upload(b.ptr, raw); err != nil {
		return fmt.Errorf("%s: %w", b.name, err)
	}
	return nil
}

// table uploads a variant's table; nil for one that rotates nothing.
func (a *arena) table(v rope.Variant) (*buffer, error) {
	if v.RotaryDim == 0 {
		return nil, nil
	}
	return a.upload("rope table", rope.Table(v))
}

func (a *arena) free() error {
	var errs []error
	for _, b := range a.buffers {
		errs = append(errs, a.dev.Free(b.base))
	}
	for _, m := range a.maps {
		errs = append(errs, m.Free())
	}
	a.buffers, a.maps = nil, nil
	return errors.Join(errs...)
}

func (b *buffer) poison() error {
	if err := b.arena.dev.Fill(0, b.base, poison, b.bytes+2*b.arena.guard); err != nil {
		return fmt.Errorf("%s: %w", b.name, err)
	}
	return nil
}

// pointer is the buffer's address, null for a nil buffer.
func (b *buffer) pointer() abi.DevicePtr {
	if b == nil {
		return 0
	}
	return b.ptr
}

// download returns the buffer; what a kernel wrote into a guard is its mistake.
func (b *buffer) download() ([]byte, error) {
	all := make([]byte, b.bytes+2*b.arena.guard)
	if err := b.arena.dev.Download(all, b.base); err != nil {
		return nil, wrongf("%s: %w", b.name, err) // the device is fine until a kernel faults
	}
	n := b.arena.guard
	if i := notPoison(all[:n]); i >= 0 {
		return nil, wrongf("%s: %d bytes before it were written", b.name, n-int64(i))
	}
	if i := notPoison(all[n+b.bytes:]); i >= 0 {
		return nil, wrongf("%s: byte %d behind its end was written", b.name, i)
	}
	return all[n : n+b.bytes], nil
}

// unchanged says that the buffer still holds want.
func (b *buffer) unchanged(want []byte) error {
	got, err := b.download()
	if err != nil {
		return err
	}
	if !bytes.Equal(got[:len(want)], want) {
		for i := range want {
			if got[i] != want[i] {
				return wrongf("%s: byte %d of an input was changed", b.name, i)
			}
		}
	}
	return nil
}

// notPoison is the index of the first byte that is not poison, or -1.
func notPoison(p []byte) int {
	for i, x := range p {
		if x != poison {
			return i
		}
	}
	return -1
}

// allocations makes several buffers and keeps the first error, so that callers check once.
type allocations struct {
	arena *arena
	err   error
}

func (m *allocations) alloc(name string, n int) *buffer {
	if m.err != nil {
		return nil
	}
	b, err := m.arena.alloc(name, n)
	m.err = err
	return b
}

func (m *allocations) upload(name string, data any) *buffer {
	if m.err != nil {
		return nil
	}
	b, err := m.arena.upload(name, data)
	m.err = err
	return b
}
