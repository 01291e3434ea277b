package device

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kvcache"
)

// Chunks keep their bits through eviction to the host tier and back, through a
// file, and behind a fork.
func TestKVCache(t *testing.T) { eachBinding(t, testKVCache) }

func testKVCache(t *testing.T, o opener) {
	d := o.gpu(t)
	ctx := context.Background()
	shape := kvcache.Shape{Layers: 32, KVHeads: 8, HeadDim: 128, VHeadDim: 64, ElementBytes: 2, PageSize: 16}
	config := kvcache.Config{Shape: shape, Pages: 40, HostBytes: 100 * shape.PageBytes(), Stream: stream(t, d)}
	open := func() *kvcache.Cache {
		c, err := kvcache.New(d, config)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := open()

	const documents, tokens = 6, 250 // of 16 pages each: two are on the device at a time
	contents := map[int][]byte{}
	rng := rand.New(rand.NewPCG(3, 4))
	hold := func(c *kvcache.Cache, i int) *kvcache.Chunk {
		t.Helper()
		h, err := c.Acquire(ctx, document(i, tokens), func(_ context.Context, pages []int32) error {
			contents[i] = make([]byte, int64(len(pages))*shape.PageBytes())
			for j := range contents[i] {
				contents[i][j] = byte(rng.Uint32())
			}
			return eachPart(c, pages, contents[i], d.Upload)
		})
		if err != nil {
			t.Fatal(err)
		}
		pages, err := h.Pages(nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(contents[i]))
		if err := eachPart(c, pages, got, func(p abi.DevicePtr, b []byte) error { return d.Download(b, p) }); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, contents[i]) {
			t.Errorf("document %d has changed", i)
		}
		return h
	}
	for _, i := range []int{0, 1, 2, 3, 4, 5, 0, 3, 1, 5, 2, 4, 0} {
		hold(c, i).Release()
	}
	if s := c.Stats(); s.Encodes != documents || s.Restores < 6 || s.HostDrops > 0 {
		t.Errorf("%+v", s)
	}

	s, err := c.Open(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Extend(20); err != nil {
		t.Fatal(err)
	}
	var table kvcache.Table
	pagesOf := func(s *kvcache.Sequence) []int32 {
		table.Reset()
		if _, err := table.Add(nil, s); err != nil {
			t.Fatal(err)
		}
		return table.Pages
	}
	want := make([]byte, 2*shape.PageBytes())
	for j := range want {
		want[j] = byte(rng.Uint32())
	}
	if err := eachPart(c, pagesOf(s), want, d.Upload); err != nil {
		t.Fatal(err)
	}
	f, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Extend(1); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := eachPart(c, pagesOf(f), got, func(p abi.DevicePtr, b []byte) error { return d.Download(b, p) }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || c.Stats().PageCopies != 1 {
		t.Errorf("a fork's copy of a page differs, or there is none: %+v", c.Stats())
	}
	s.Close()
	f.Close()

	var file bytes.Buffer
	if err := errors.Join(c.Persist(ctx, &file), c.Close()); err != nil {
		t.Fatal(err)
	}
	c = open()
	if n, err := c.Load(ctx, &file); n != documents || err != nil {
		t.Fatalf("%d chunks, %v", n, err)
	}
	for i := range documents {
		hold(c, i).Release()
	}
	if s := c.Stats(); s.Misses > 0 {
		t.Errorf("%+v", s)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func document(number, n int) kvcache.Document {
	d := kvcache.Document{Tokens: make([]int32, n)}
	for i := range d.Tokens {
		d.Tokens[i] = int32(number*n + i)
	}
	return d
}

// eachPart calls f with every part of pages that is of one page and layer, and
// the part of b that is to stand there.
func eachPart(c *kvcache.Cache, pages []int32, b []byte, f func(abi.DevicePtr, []byte) error) error {
	shape := c.Config().Shape
	k, v := shape.KPageBytes(), shape.VPageBytes()
	for l := range shape.Layers {
		base := c.Layer(l)
		for _, page := range pages {
			err := errors.Join(f(base.K+abi.DevicePtr(int64(page)*k), b[:k]), f(base.V+abi.DevicePtr(int64(page)*v), b[k:k+v]))
			if err != nil {
				return err
			}
			b = b[k+v:]
		}
	}
	return nil
}

// What eviction and coming back cost: one document of 4096 tokens of Llama-3-8B.
func BenchmarkTier(b *testing.B) { eachBinding(b, benchmarkTier) }

func benchmarkTier(b *testing.B, o opener) {
	d := o.gpu(b)
	ctx := context.Background()
	shape := kvcache.Shape{Layers: 32, KVHeads: 8, HeadDim: 128, VHeadDim: 128, ElementBytes: 2, PageSize: 16}
	s := stream(b, d)
	c, err := kvcache.New(d, kvcache.Config{Shape: shape, Pages: 300, HostBytes: 600 * shape.PageBytes(), Stream: s})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	hold := func(i int) {
		h, err := c.Acquire(ctx, document(i, 4096), func(context.Context, []int32) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		h.Release()
	}
	hold(0)
	hold(1)
	b.SetBytes(256 * shape.PageBytes())
	i := 0
	for b.Loop() { // each comes back and puts the other out, of which the host tier has a copy
		hold(i % 2)
		if err := d.Synchronize(ctx, s); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(c.Stats().Restores)/float64(i), "restores/op")
}
