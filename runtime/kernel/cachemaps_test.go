package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// mapper is a fake that makes tensor maps and holds them.
type mapper struct {
	*fake
	maps    []cuda.TensorMap
	badMap  int                      // number of the map that fails, from 1
	badCopy bool                     // Upload fails
	memory  map[abi.DevicePtr][]byte // what was uploaded
	held    map[abi.DevicePtr]bool   // what was allocated
}

const firstAddress = 4096 + 16 // of Alloc: aligned as an emulator's

func (m *mapper) EncodeTensorMap(t cuda.TensorMap) (encoded [128]byte, err error) {
	m.maps = append(m.maps, t)
	if len(m.maps) == m.badMap {
		return encoded, errors.New("bad map")
	}
	copy(encoded[:], bytes.Repeat([]byte{byte(len(m.maps))}, len(encoded)))
	return encoded, t.Check()
}

func (m *mapper) Alloc(n int64) (abi.DevicePtr, error) {
	if n < 128 {
		return 0, fmt.Errorf("%d bytes", n)
	}
	m.held[firstAddress] = true
	return firstAddress, nil
}

func (m *mapper) Free(p abi.DevicePtr) error {
	if !m.held[p] {
		return errors.New("not held")
	}
	delete(m.held, p)
	return nil
}

func (m *mapper) Upload(p abi.DevicePtr, data []byte) error {
	if m.badCopy {
		return errors.New("bad copy")
	}
	m.memory[p] = bytes.Clone(data)
	return nil
}

func newMapper() *mapper {
	return &mapper{fake: h200(), memory: map[abi.DevicePtr][]byte{}, held: map[abi.DevicePtr]bool{}}
}

func hopperBundle(cache CacheShape) Bundle {
	return Bundle{Name: "hopper", Cache: cache, Kernels: []Artifact{
		{Kind: abi.KindExtend, Entry: "e", Family: "sm90", Targets: []string{"sm_90a"}, Keys: 64, Warps: 4},
		{Kind: abi.KindDecode, Entry: "d", Family: "sm80", Targets: []string{"sm_90a"}, Keys: 64, Warps: 4},
	}}
}

func openHopper(t *testing.T, dev cuda.Device, cache CacheShape) *Set {
	t.Helper()
	s, err := Open(context.Background(), dev, hopperBundle(cache), Options{Compile: func(context.Context, Source) ([]byte, error) { return []byte("made"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMapCache(t *testing.T) {
	const keys, values, pages, heads = 0x10000, 0x20000, 7, 3
	for _, c := range []struct {
		cache CacheShape
		want  [2]cuda.TensorMap
	}{
		{CacheShape{HeadDim: 128, VHeadDim: 64, PageSize: 16}, [2]cuda.TensorMap{
			{Base: keys, Dims: [5]int64{64, 8, 3 * 2, 2, 7}, Strides: [4]int64{3 * 256, 128, 8 * 3 * 256, 16 * 3 * 256}, Box: [5]int{64, 8, 2, 2, 1}},
			{Base: values, Dims: [5]int64{64, 8, 3, 2, 7}, Strides: [4]int64{3 * 128, 128, 8 * 3 * 128, 16 * 3 * 128}, Box: [5]int{64, 8, 1, 2, 1}},
		}},
		{CacheShape{HeadDim: 256, VHeadDim: 64, PageSize: 256, HeadMajor: true}, [2]cuda.TensorMap{
			{Base: keys, Dims: [5]int64{64, 8, 4, 32, 7 * 3}, Strides: [4]int64{512, 128, 8 * 512, 256 * 512}, Box: [5]int{64, 8, 4, 8, 1}},
			{Base: values, Dims: [5]int64{64, 8, 1, 32, 7 * 3}, Strides: [4]int64{128, 128, 8 * 128, 256 * 128}, Box: [5]int{64, 8, 1, 8, 1}},
		}},
		{CacheShape{HeadDim: 64, VHeadDim: 64, PageSize: 8}, [2]cuda.TensorMap{
			{Base: keys, Dims: [5]int64{64, 8, 3, 1, 7}, Strides: [4]int64{3 * 128, 128, 8 * 3 * 128, 8 * 3 * 128}, Box: [5]int{64, 8, 1, 1, 1}},
			{Base: values, Dims: [5]int64{64, 8, 3, 1, 7}, Strides: [4]int64{3 * 128, 128, 8 * 3 * 128, 8 * 3 * 128}, Box: [5]int{64, 8, 1, 1, 1}},
		}},
	} {
		dev := newMapper()
		m, err := openHopper(t, dev, c.cache).MapCache(abi.KindExtend, keys, values, pages, heads)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want[:], dev.maps); diff != "" {
			t.Error(diff)
		}
		both := dev.memory[m.K]
		if m.K%64 != 0 || m.V != m.K+128 || len(both) != 256 || both[0] != 1 || both[255] != 2 {
			t.Errorf("maps %+v, memory %v", m, dev.memory)
		}
		for range 2 { // the second does nothing
			if err := m.Free(); err != nil || len(dev.held) != 0 || m.K != 0 || m.V != 0 {
				t.Errorf("Free: %v; %d pieces of memory held, maps %+v", err, len(dev.held), m)
			}
		}
	}
}

// Keys that are rotated ahead have a map like the cache's, of other pages.
func TestMapKeys(t *testing.T) {
	const keys, pages, heads = 0x10000, 7, 3
	b := hopperBundle(CacheShape{HeadDim: 128, VHeadDim: 64, PageSize: 16})
	b.Kernels[0].KeysAhead = true
	open := func(dev cuda.Device) *Set {
		s, err := Open(context.Background(), dev, b, Options{Compile: func(context.Context, Source) ([]byte, error) { return []byte("made"), nil }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	dev := newMapper()
	s := open(dev)
	c := s.Choose(abi.KindExtend, 1, 1)
	if !c.KeysAhead || s.Choose(abi.KindDecode, 1, 1).KeysAhead {
		t.Errorf("choice %+v", c)
	}
	m, err := s.MapKeys(c, keys, pages, heads)
	if err != nil {
		t.Fatal(err)
	}
	want := cuda.TensorMap{Base: keys, Dims: [5]int64{64, 8, 3 * 2, 2, 7}, Strides: [4]int64{3 * 256, 128, 8 * 3 * 256, 16 * 3 * 256}, Box: [5]int{64, 8, 2, 2, 1}}
	if diff := cmp.Diff([]cuda.TensorMap{want}, dev.maps); diff != "" {
		t.Error(diff)
	}
	if m.K%64 != 0 || m.V != 0 || len(dev.memory[m.K]) != 128 {
		t.Errorf("maps %+v, memory %v", m, dev.memory)
	}
	if err := m.Free(); err != nil || len(dev.held) != 0 {
		t.Errorf("Free: %v; %d pieces of memory held", err, len(dev.held))
	}
	for want, dev := range map[string]*mapper{
		"map rotated keys of hopper for extend: tensor map of K: bad map": {fake: h200(), badMap: 1},
		"bad copy": {fake: h200(), badCopy: true, held: map[abi.DevicePtr]bool{}},
	} {
		s := open(dev)
		if _, err := s.MapKeys(s.Choose(abi.KindExtend, 1, 1), keys, pages, heads); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
		if len(dev.held) != 0 {
			t.Errorf("%s: memory is still held", want)
		}
	}
}

func TestMapCacheOfOtherFamilies(t *testing.T) {
	dev := newMapper()
	m, err := openHopper(t, dev, CacheShape{}).MapCache(abi.KindDecode, 16, 16, 1, 1)
	if err != nil || m.K != 0 || m.V != 0 || len(dev.maps) != 0 || m.Free() != nil {
		t.Errorf("maps %+v, %v", m, err)
	}
}

func TestMapCacheErrors(t *testing.T) {
	cache := CacheShape{HeadDim: 64, VHeadDim: 64, PageSize: 16}
	for _, c := range []struct {
		want  string
		dev   cuda.Device
		kind  abi.Kind
		pages int
	}{
		{"has no such kernel", newMapper(), abi.KindPrefill, 1},
		{"H200 makes no tensor maps", h200(), abi.KindExtend, 1},
		{"map the cache of hopper for extend: tensor map of K: bad map", &mapper{fake: h200(), badMap: 1}, abi.KindExtend, 1},
		{"map the cache of hopper for extend: tensor map of V: bad map", &mapper{fake: h200(), badMap: 2}, abi.KindExtend, 1},
		{"dimension 4 has 0 elements", newMapper(), abi.KindExtend, 0},
		{"bad copy", &mapper{fake: h200(), badCopy: true, held: map[abi.DevicePtr]bool{}}, abi.KindExtend, 1},
	} {
		_, err := openHopper(t, c.dev, cache).MapCache(c.kind, 1<<16, 1<<17, c.pages, 2)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
		if m, ok := c.dev.(*mapper); ok && len(m.held) != 0 {
			t.Errorf("%s: memory is still held", c.want)
		}
	}
}

func TestLaunchWithCacheMaps(t *testing.T) {
	dev := newMapper()
	dev.info.Multiprocessors = 10
	s := openHopper(t, dev, CacheShape{HeadDim: 64, VHeadDim: 64, PageSize: 16})
	for _, p := range []abi.AttendParams{{KMap: 64}, {VMap: 64}} {
		p.ItemCount, p.KVHeads = 1, 1
		if err := s.Extend(0, p); err == nil || !strings.Contains(err.Error(), "launch extend of hopper: no tensor maps of the caches") {
			t.Errorf("error %v", err)
		}
	}
	for items, want := range map[int32]int{4: 8, 40: 10} { // persistent blocks
		dev.launches = nil
		if err := s.Extend(0, abi.AttendParams{KMap: 64, VMap: 192, ItemCount: items, KVHeads: 2}); err != nil {
			t.Fatal(err)
		}
		if c := dev.launches[0].config; c.GridX != want || c.GridY != 1 {
			t.Errorf("%d items: a grid of %d by %d, want %d by 1", items, c.GridX, c.GridY, want)
		}
	}
}
