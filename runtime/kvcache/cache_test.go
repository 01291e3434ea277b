package kvcache_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

var shape = kvcache.Shape{Layers: 2, KVHeads: 1, HeadDim: 2, VHeadDim: 1, ElementBytes: 2, PageSize: 4}

// open makes a cache of the pages on a new device.
func open(t *testing.T, pages int) (*kvcache.Cache, *device) {
	t.Helper()
	d := newDevice()
	c, err := kvcache.New(d, kvcache.Config{Model: "m", Spec: "s", Encoding: "segment", Shape: shape, Pages: pages})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, kvcache.ErrClosed) {
			t.Error(err)
		}
		if len(d.regions) > 0 || len(d.host) > 0 {
			t.Errorf("%d device and %d host allocations are left", len(d.regions), len(d.host))
		}
	})
	return c, d
}

func document(first int32, n int) kvcache.Document {
	d := kvcache.Document{Tokens: make([]int32, n)}
	for i := range d.Tokens {
		d.Tokens[i] = first*1000 + int32(i)
	}
	return d
}

func nothing(context.Context, []int32) error { return nil }

func acquire(t *testing.T, c *kvcache.Cache, d kvcache.Document) *kvcache.Chunk {
	t.Helper()
	h, err := c.Acquire(context.Background(), d, nothing)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestSequence(t *testing.T) {
	c, _ := open(t, 10)
	a, b := acquire(t, c, document(1, 6)), acquire(t, c, document(2, 4))
	s, err := c.Open(kvcache.Pack(a, b, a), kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	a.Release()
	b.Release()
	if err := s.Extend(5); err != nil {
		t.Fatal(err)
	}
	var table kvcache.Table
	for range 2 {
		table.Reset()
		got, err := table.Add(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		want := []schedule.Segment{
			{Page: 0, Tokens: 6}, {Page: 2, Tokens: 4, Offset: 6}, {Page: 0, Tokens: 6, Offset: 10},
			{Page: 3, Tokens: 5, Offset: 16, Own: true}}
		if !slices.Equal(got, want) || !slices.Equal(table.Pages, []int32{0, 1, 2, 3, 4}) {
			t.Errorf("segments %v of pages %v, want %v", got, table.Pages, want)
		}
	}
	slots, err := s.Slots(nil, 2)
	if want := []int32{14, 15, 16}; err != nil || !slices.Equal(slots, want) {
		t.Errorf("slots %v, %v, want %v", slots, err, want)
	}
	err = s.Extend(24)
	var short *kvcache.NoPagesError
	if !errors.As(err, &short) || *short != (kvcache.NoPagesError{Needed: 6, Free: 5, Total: 10}) {
		t.Errorf("error %v", err)
	}
	s.Close()
	if got := c.Stats(); got.PagesFree != 7 || got.PagesEvictable != 3 || got.Sequences != 0 || got.Chunks != 2 {
		t.Errorf("%+v", got)
	}
}
