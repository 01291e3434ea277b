package bench

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/numeric"
)

// memory is buffers that are freed together. After its first error it does nothing
// more, so that callers look at err once.
type memory struct {
	dev     cuda.Device
	buffers []abi.DevicePtr
	err     error
}

func (m *memory) alloc(bytes int64) abi.DevicePtr {
	if m.err != nil {
		return 0
	}
	var p abi.DevicePtr
	if p, m.err = m.dev.Alloc(max(bytes, 256)); m.err == nil {
		m.buffers = append(m.buffers, p)
	}
	return p
}

func (m *memory) upload(data any) abi.DevicePtr {
	raw, err := binary.Append(nil, binary.LittleEndian, data)
	if m.err == nil {
		m.err = err
	}
	p := m.alloc(int64(len(raw)))
	if m.err == nil && len(raw) > 0 {
		m.err = m.dev.Upload(p, raw)
	}
	return p
}

// random is memory of normally distributed elements, the same megabytes again and again.
func (m *memory) random(rng *rand.Rand, elements int64, format numeric.Format) abi.DevicePtr {
	const most = 1 << 20
	total := 2 * elements
	p := m.alloc(total)
	if m.err != nil {
		return 0
	}
	block := make([]byte, min(total, 2*most))
	for i := 0; i < len(block); i += 2 {
		binary.LittleEndian.PutUint16(block[i:], format.Bits(rng.NormFloat64()))
	}
	copier, copies := m.dev.(cuda.Copier)
	for done := int64(0); done < total && m.err == nil; {
		to := p + abi.DevicePtr(done)
		if copies && done > 0 {
			n := min(done, 32*2*most, total-done) // doubled by the device, up to a size that no driver minds
			m.err = copier.CopyAsync(0, to, p, cuda.Blocks{Bytes: n, Stride: n, Count: 1})
			done += n
			continue
		}
		n := min(int64(len(block)), total-done)
		m.err = m.dev.Upload(to, block[:n])
		done += n
	}
	return p
}

func (m *memory) free() { m.release(0) }

// release frees all but the first buffers, and forgets the error.
func (m *memory) release(first int) {
	for _, p := range m.buffers[first:] {
		_ = m.dev.Free(p)
	}
	m.buffers, m.err = m.buffers[:first], nil
}
