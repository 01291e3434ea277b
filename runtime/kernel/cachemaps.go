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
	boxColumns, boxRows    = 64, 8 // elements, tokens: a block of a tile; see cuda.TensorMap
)

// MapCache makes the tensor maps that launches of the kind need for caches of
// that many pages and KV heads at keys and values; a kind's maps may be another
// kind's too only where their tiles have the same number of keys, for as many blocks. A
// cache that grows or moves needs new ones.
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

func (s *Set) mapKeysFor(l *loaded, keys abi.DevicePtr, pages, kvHeads int) (*CacheMaps, error) {
	m := &CacheMaps{device: s.device}
	k, err := s.encode("K", keys, s.cache.HeadDim, l.artifact, pages, kvHeads)
	if err == nil {
		if err = m.upload(k[:]); err == nil {
			return m, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("map rotated keys of %s for %s: %w", s.name, l.artifact.Kind, err), m.Free())
}

// boxKeys are the most tokens of a box: those of a tile, or of a block's share of it.
func (a *Artifact) boxKeys() int { return a.Keys / max(1, a.Cluster) }

func (s *Set) mapCache(m *CacheMaps, a Artifact, keys, values abi.DevicePtr, pages, kvHeads int) error {
	k, err := s.encode("K", keys, s.cache.HeadDim, a, pages, kvHeads)
	if err != nil {
		return err
	}
	v, err := s.encode("V", values, s.cache.VHeadDim, a, pages, kvHeads)
	if err != nil {
		return err
	}
	if err := m.upload(append(k[:], v[:]...)); err != nil {
		return err
	}
	m.V = m.K + mapBytes
	return nil
}

// encode is the tensor map of K or V for a kernel.
func (s *Set) encode(name string, base abi.DevicePtr, dim int, a Artifact, pages, kvHeads int) ([mapBytes]byte, error) {
	mapper, ok := s.device.(cuda.TensorMapper)
	if !ok {
		return [mapBytes]byte{}, fmt.Errorf("%s makes no tensor maps", s.device.Info().Name)
	}
	encoded, err := mapper.EncodeTensorMap(s.cache.tensorMap(base, dim, a.boxKeys(), pages, kvHeads))
	if err != nil {
		return [mapBytes]byte{}, fmt.Errorf("tensor map of %s: %w", name, err)
	}
	return encoded, nil
}

// upload puts maps into memory of their own, that of K first.
func (m *CacheMaps) upload(maps []byte) (err error) {
	if m.memory, err = m.device.Alloc(int64(len(maps)) + mapAlignment); err != nil {
		return err
	}
	first := (m.memory + mapAlignment - 1) / mapAlignment * mapAlignment
	if err := m.device.Upload(first, maps); err != nil {
		return err
	}
	m.K = first
	return nil
}

// tensorMap describes a cache to kernels of family sm90, in boxes of one page's, or where
// a page is larger one tile's, vectors of one head. A box comes to a tile as blocks of eight
// tokens by 64 elements, those of the same tokens one behind the other; so its dimensions
// are the element of a block, the token of a block, the block of a vector, the eight of a
// page, the page. There are no more than five: heads count with the blocks of a vector where
// a token's heads are one behind the other, with the pages where a head's tokens are.
func (c CacheShape) tensorMap(base abi.DevicePtr, dim, tileKeys, pages, kvHeads int) cuda.TensorMap {
	vector, page, heads := int64(dim)*elementBytes, int64(c.PageSize), int64(kvHeads)
	blocks, places, token := int64(dim/boxColumns), int64(pages), vector
	if c.HeadMajor {
		places *= heads
	} else {
		blocks, token = blocks*heads, vector*heads
	}
	return cuda.TensorMap{
		Base:    base,
		Dims:    [5]int64{boxColumns, boxRows, blocks, page / boxRows, places},
		Strides: [4]int64{token, boxColumns * elementBytes, boxRows * token, page * token},
		Box:     [5]int{boxColumns, boxRows, dim / boxColumns, min(c.PageSize, tileKeys) / boxRows, 1},
	}
}
