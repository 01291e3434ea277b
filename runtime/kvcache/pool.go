package kvcache

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Shape is the KV of a model on one device.
type Shape struct {
	Layers       int
	KVHeads      int // on this device
	HeadDim      int // of K
	VHeadDim     int // of V
	ElementBytes int
	PageSize     int // tokens
}

// KPageBytes is the size of a page of K in one layer.
func (s Shape) KPageBytes() int64 { return s.tokenBytes(s.HeadDim) * int64(s.PageSize) }

// VPageBytes is the size of a page of V in one layer.
func (s Shape) VPageBytes() int64 { return s.tokenBytes(s.VHeadDim) * int64(s.PageSize) }

// PageBytes is the size of a page: K and V in all layers.
func (s Shape) PageBytes() int64 { return int64(s.Layers) * (s.KPageBytes() + s.VPageBytes()) }

// Pages is the number of pages that hold the tokens.
func (s Shape) Pages(tokens int) int { return (tokens + s.PageSize - 1) / s.PageSize }

func (s Shape) tokenBytes(dim int) int64 {
	return int64(s.KVHeads) * int64(dim) * int64(s.ElementBytes)
}

func (s Shape) check() error {
	for _, f := range []struct {
		name         string
		value, limit int // the limits keep PageBytes within an int64
	}{
		{"Layers", s.Layers, 1 << 10}, {"KVHeads", s.KVHeads, 1 << 12}, {"HeadDim", s.HeadDim, 1 << 14}, {"VHeadDim", s.VHeadDim, 1 << 14},
		{"ElementBytes", s.ElementBytes, 1 << 4}, {"PageSize", s.PageSize, 1 << 20},
	} {
		if f.value < 1 || f.value > f.limit {
			return fmt.Errorf("the shape's %s is %d, want 1 to %d", f.name, f.value, f.limit)
		}
	}
	return nil
}

// Layer is where one layer's pages begin: page i of K is at K + i*KPageBytes,
// for every i below Config.Pages. The addresses are multiples of 256 bytes from
// the start of the allocation and stay until the cache is closed, so a tensor
// map can be made from them once.
type Layer struct {
	K, V abi.DevicePtr
}

// alignment is that of every layer's first page.
const alignment = 256

// pool is the pages on the device: which are free, and how many hold each of
// the others. Kept: all layers' K, then all layers' V.
type pool struct {
	device  cuda.Device
	copier  cuda.Copier // the device if it is one, or nil
	shape   Shape
	base    abi.DevicePtr
	kStride int64 // bytes from one layer's K to the next
	vStride int64
	free    []int32 // a stack
	refs    []int32 // holders of each page
}

func newPool(d cuda.Device, s Shape, pages int) (*pool, error) {
	if pages < 1 || pages > math.MaxInt32/s.PageSize {
		return nil, fmt.Errorf("%d pages of %d tokens, want 1 to %d tokens in all", pages, s.PageSize, math.MaxInt32)
	}
	p := &pool{device: d, shape: s}
	p.copier, _ = d.(cuda.Copier)
	var err error
	if p.kStride, err = layerBytes(s.KPageBytes(), pages); err != nil {
		return nil, err
	}
	if p.vStride, err = layerBytes(s.VPageBytes(), pages); err != nil {
		return nil, err
	}
	over, total := bits.Mul64(uint64(p.kStride+p.vStride), uint64(s.Layers))
	if over != 0 || total > math.MaxInt64 {
		return nil, errTooLarge
	}
	if p.base, err = d.Alloc(int64(total)); err != nil {
		return nil, fmt.Errorf("%d pages of %d bytes: %w", pages, s.PageBytes(), err)
	}
	p.free, p.refs = make([]int32, pages), make([]int32, pages)
	for i := range p.free {
		p.free[i] = int32(pages - 1 - i)
	}
	return p, nil
}

var errTooLarge = errors.New("the pool is larger than any device")

func layerBytes(pageBytes int64, pages int) (int64, error) {
	over, n := bits.Mul64(uint64(pageBytes), uint64(pages))
	if over != 0 || n > math.MaxInt64/4 {
		return 0, errTooLarge
	}
	return (int64(n) + alignment - 1) / alignment * alignment, nil
}

func (p *pool) layer(l int) Layer {
	return Layer{
		K: p.base + abi.DevicePtr(int64(l)*p.kStride),
		V: p.base + abi.DevicePtr(int64(p.shape.Layers)*p.kStride+int64(l)*p.vStride),
	}
}

// take appends n free pages to dst. There must be as many.
func (p *pool) take(dst []int32, n int) []int32 {
	rest := len(p.free) - n
	for i := len(p.free) - 1; i >= rest; i-- {
		p.refs[p.free[i]] = 1
		dst = append(dst, p.free[i])
	}
	p.free = p.free[:rest]
	return dst
}

func (p *pool) retain(pages []int32) {
	for _, page := range pages {
		p.refs[page]++
	}
}

// release gives up one hold of each page.
func (p *pool) release(pages []int32) {
	for i := len(pages) - 1; i >= 0; i-- { // so that they are taken in the same order again
		page := pages[i]
		p.refs[page]--
		if p.refs[page] == 0 {
			p.free = append(p.free, page)
		}
	}
}
