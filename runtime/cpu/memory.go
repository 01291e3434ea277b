package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
	"sync"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Addresses are handles: allocation bases are multiples of alignment, with at
// least that much unused between the end of one and the next base.
const (
	alignment    = 256
	firstAddress = 1 << 40
)

// memory is the allocations of a device.
type memory struct {
	mu     sync.RWMutex
	blocks []block // by base
	next   abi.DevicePtr
	used   int64
	limit  int64
}

// block is one allocation.
type block struct {
	base abi.DevicePtr
	data []byte
}

func (m *memory) alloc(n int64) (abi.DevicePtr, error) {
	if n <= 0 {
		return 0, fmt.Errorf("alloc: %d bytes: must be positive", n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.limit-m.used {
		return 0, fmt.Errorf("alloc: %w: wanted %d bytes, %d of %d are free", cuda.ErrOutOfMemory, n, m.limit-m.used, m.limit)
	}
	base := m.next
	m.next = (base + abi.DevicePtr(n) + 2*alignment - 1) &^ (alignment - 1)
	m.used += n
	m.blocks = append(m.blocks, block{base, make([]byte, n)})
	return base, nil
}

func (m *memory) free(p abi.DevicePtr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.find(p)
	if i < 0 || m.blocks[i].base != p {
		return fmt.Errorf("free: %#x is not what Alloc returned, or was freed already", p)
	}
	m.used -= int64(len(m.blocks[i].data))
	copy(m.blocks[i:], m.blocks[i+1:])
	m.blocks[len(m.blocks)-1] = block{} // for the garbage collector
	m.blocks = m.blocks[:len(m.blocks)-1]
	return nil
}

// find is the index of the last block that starts at or before p, or -1.
func (m *memory) find(p abi.DevicePtr) int {
	return sort.Search(len(m.blocks), func(i int) bool { return m.blocks[i].base > p }) - 1
}

// region is the memory from p to the end of its allocation. The null pointer
// gives an empty region.
func (m *memory) region(name string, p abi.DevicePtr) (region, error) {
	r := region{name: name, address: p}
	if p == 0 {
		return r, nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if i := m.find(p); i >= 0 {
		if at := p - m.blocks[i].base; at < abi.DevicePtr(len(m.blocks[i].data)) {
			r.data = m.blocks[i].data[at:]
			return r, nil
		}
	}
	return r, fmt.Errorf("%s: %#x is not in any allocation", name, p)
}

// regions looks up the addresses of a launch and keeps the first error.
type regions struct {
	memory *memory
	err    error
}

func (l *regions) of(name string, p abi.DevicePtr) region {
	if l.err != nil {
		return region{}
	}
	r, err := l.memory.region(name, p)
	l.err = err
	return r
}

// bytes is n bytes at p.
func (m *memory) bytes(name string, p abi.DevicePtr, n int64) ([]byte, error) {
	r, err := m.region(name, p)
	if err != nil {
		return nil, err
	}
	return r.at(0, n)
}

// region is device memory that a launch parameter points to.
type region struct {
	name    string // of the parameter
	address abi.DevicePtr
	data    []byte
}

// at is n bytes from an offset on.
func (r region) at(offset, n int64) ([]byte, error) {
	if offset < 0 || n < 0 || offset > int64(len(r.data)) || n > int64(len(r.data))-offset {
		return nil, r.outside(offset, n)
	}
	return r.data[offset : offset+n], nil
}

func (r region) outside(offset, n int64) error {
	if r.address == 0 {
		return fmt.Errorf("%s is null and is needed", r.name)
	}
	return fmt.Errorf("%s at %#x: %d bytes at offset %d are outside its allocation, which ends at offset %d", r.name, r.address, n, offset, len(r.data))
}

func (r region) int32(i int64) (int32, error) {
	b, err := r.at(4*i, 4)
	if err != nil {
		return 0, err
	}
	return int32(binary.LittleEndian.Uint32(b)), nil
}

func (r region) float32(i int64) (float32, error) {
	b, err := r.at(4*i, 4)
	if err != nil {
		return 0, err
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b)), nil
}

func (r region) putFloat32(i int64, x float32) error {
	b, err := r.at(4*i, 4)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b, math.Float32bits(x))
	return nil
}

// putFloat32s writes xs from index i on.
func (r region) putFloat32s(i int64, xs []float32) error {
	b, err := r.at(4*i, 4*int64(len(xs)))
	if err != nil {
		return err
	}
	for _, x := range xs {
		binary.LittleEndian.PutUint32(b, math.Float32bits(x))
		b = b[4:]
	}
	return nil
}

// float32s reads len(dst) numbers from index i on.
func (r region) float32s(dst []float32, i int64) error {
	b, err := r.at(4*i, 4*int64(len(dst)))
	if err != nil {
		return err
	}
	for j := range dst {
		dst[j] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*j:]))
	}
	return nil
}

// words is the eight int32 of struct i in an array of such structs: every work
// list but that of members is one.
func (r region) words(i int64) (w [8]int32, err error) {
	b, err := r.at(int64(4*len(w))*i, int64(4*len(w)))
	if err != nil {
		return w, err
	}
	for j := range w {
		w[j] = int32(binary.LittleEndian.Uint32(b[4*j:]))
	}
	return w, nil
}

func (r region) item(i int64) (abi.Item, error) {
	w, err := r.words(i)
	return abi.Item{QBegin: w[0], QCount: w[1], QIndex: w[2], RunBegin: w[3], RunEnd: w[4], Slot: w[5], SlotStride: w[6]}, err
}

func (r region) member(i int64) (abi.Member, error) {
	b, err := r.at(8*i, 8)
	if err != nil {
		return abi.Member{}, err
	}
	return abi.Member{Token: int32(binary.LittleEndian.Uint32(b)), Slot: int32(binary.LittleEndian.Uint32(b[4:]))}, nil
}

func (r region) run(i int64) (abi.Run, error) {
	w, err := r.words(i)
	return abi.Run{Page: w[0], Begin: w[1], End: w[2], Offset: w[3], Causal: w[4], EndsPart: w[6]}, err
}

// get reads a list of structs of int32.
func (r region) get(list any) error {
	b, err := r.at(0, int64(binary.Size(list)))
	if err != nil || len(b) == 0 {
		return err
	}
	_, err = binary.Decode(b, binary.LittleEndian, list)
	return err
}

// put writes a list of structs of int32.
func (r region) put(list any) error {
	b, err := r.at(0, int64(binary.Size(list)))
	if err != nil || len(b) == 0 {
		return err
	}
	_, err = binary.Encode(b, binary.LittleEndian, list)
	return err
}

func (r region) copyItem(i int64) (abi.Copy, error) {
	w, err := r.words(i)
	return abi.Copy{SrcPage: w[0], SrcBegin: w[1], DstPage: w[2], DstBegin: w[3], Count: w[4], Offset: w[5]}, err
}
