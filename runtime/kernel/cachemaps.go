package kernel

import (
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// CacheShape is what the kernels of a spec have fixed of the K and V caches.
type CacheShape struct {
	HeadDim, VHeadDim int  // elements of a vector of K and of V, 2 bytes each
	PageSize          int  // tokens
	HeadMajor         bool // a page is [KV heads][page size][dim], not [page size][KV heads][dim]
}

// CacheMaps are the tensor maps of a K and a V cache in device memory, for
// AttendParams.KMap and VMap. Both are null for kernels that take none.
type CacheMaps struct {
	K, V abi.DevicePtr

	device cuda.Device
	memory abi.DevicePtr // that holds both
}

// Free gives the memory back. No launch that uses the maps may be under way.
func (m *CacheMaps) Free() error {
	memory := m.memory
	m.K, m.V, m.memory = 0, 0, 0
	if memory == 0 {
		return nil
	}
	if err := m.device.Free(memory); err != nil {
		return fmt.Errorf("free tensor maps: %w", err)
	}
	return nil
}

const (
	mapBytes, mapAlignment = 128, 64
	elementBytes           = 2
	boxColumns             = 64 // elements; see cuda.TensorMap
)

// MapCache makes the tensor maps that launches of the kind need for caches of
// that many pages and KV heads at keys and values; a kind's maps may be another
// kind's too only where their tiles have the same number of keys. A cache that
// grows or moves needs new ones.
func (s *Set) MapCache(kind abi.Kind, keys, values abi.DevicePtr, pages, kvHeads int) (*CacheMaps, error) {
	l, ok := s.kernels[kind]
	if !ok {
		return nil, s.missing("map the cache for", kind)
	}
	return s.mapFor(l, keys, values, pages, kvHeads)
}

func (s *Set) mapFor(l *loaded, keys, values abi.DevicePtr, pages, kvHeads int) (*CacheMaps, error) {
	m := &CacheMaps{device: s.device}
	if l.artifact.Family != "sm90" {
		return m, nil
	}
	if err := s.mapCache(m, l.artifact, keys, values, pages, kvHeads); err != nil {
		return nil, errors.Join(fmt.Errorf("map the cache of %s for %s: %w", s.name, l.artifact.Kind, err), m.Free())
	}
	return m, nil
}

func (s *Set) mapCache(m *CacheMaps, a Artifact, keys, values abi.DevicePtr, pages, kvHeads int) error {
	mapper, ok := s.device.(cuda.TensorMapper)
	if !ok {
		return fmt.Errorf("%s makes no tensor maps", s.device.Info().Name)
	}
	k, err := mapper.EncodeTensorMap(s.cache.tensorMap(keys, s.cache.HeadDim, a.Keys, pages, kvHeads))
	if err != nil {
		return fmt.Errorf("tensor map of K: %w", err)
	}
	v, err := mapper.EncodeTensorMap(s.cache.tensorMap(values, s.cache.VHeadDim, a.Keys, pages, kvHeads))
	if err != nil {
		return fmt.Errorf("tensor map of V: %w", err)
	}
	if m.memory, err = s.device.Alloc(2*mapBytes + mapAlignment); err != nil {
		return err
	}
	first := (m.memory + mapAlignment - 1) / mapAlignment * mapAlignment
	if err := s.device.Upload(first, append(k[:], v[:]...)); err != nil {
		return err
	}
	m.K, m.V = first, first+mapBytes
	return nil
}

// tensorMap describes a cache to kernels of family sm90: dimensions (element,
// place in the page, KV head, page), in boxes of one page's, or where a page is
// larger one tile's, vectors of one head, 64 elements at a time.
func (c CacheShape) tensorMap(base abi.DevicePtr, dim, tileKeys, pages, kvHeads int) cuda.TensorMap {
	vector := int64(dim) * elementBytes
	place, head := vector*int64(kvHeads), vector
	if c.HeadMajor {
		place, head = vector, vector*int64(c.PageSize)
	}
	return cuda.TensorMap{
		Base:    base,
		Dims:    [4]int64{int64(dim), int64(c.PageSize), int64(kvHeads), int64(pages)},
		Strides: [3]int64{place, head, vector * int64(kvHeads) * int64(c.PageSize)},
		Box:     [4]int{boxColumns, min(c.PageSize, tileKeys), 1, 1},
	}
}
