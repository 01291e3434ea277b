package kvcache_test

import (
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// A step's table allocates nothing once it has grown.
func TestNoAllocation(t *testing.T) {
	c, sequences := many(t, 64)
	var table kvcache.Table
	var segments []schedule.Segment
	var slots []int32
	step := func() {
		table.Reset()
		segments, slots = segments[:0], slots[:0]
		for _, s := range sequences {
			before := s.Tokens()
			err := s.Extend(1)
			if err == nil {
				slots, err = s.Slots(slots, before)
			}
			if err == nil {
				segments, err = table.Add(segments, s)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range sequences {
			if err := s.Truncate(s.Tokens() - 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := testing.AllocsPerRun(20, step); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
	if want := 20*16 + 64; len(table.Pages) < want || len(segments) != 64*21 {
		t.Errorf("%d pages, %d segments; %+v", len(table.Pages), len(segments), c.Stats())
	}
}

// A chunk that was evicted and brought back while a table is filled is in it
// anew, at its new pages.
func TestTableAfterEviction(t *testing.T) {
	d := newDevice()
	c, err := kvcache.New(d, kvcache.Config{Shape: shape, Pages: 2, HostBytes: 2 * shape.PageBytes()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var table kvcache.Table
	var pages []int32
	for i := range 2 {
		if i > 0 { // take the page that it had
			if err := c.Evict(c.Key(document(1, 4)).ID()); err != nil {
				t.Fatal(err)
			}
			acquire(t, c, document(2, 4))
		}
		h := acquire(t, c, document(1, 4))
		s, err := c.Open(kvcache.Pack(h), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		segments, err := table.Add(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		if pages, err = h.Pages(pages); err != nil {
			t.Fatal(err)
		}
		if got := table.Pages[segments[0].Page]; got != pages[i] {
			t.Errorf("page %d in the table, want %d", got, pages[i])
		}
		s.Close()
		h.Release()
	}
	if pages[0] == pages[1] {
		t.Error("the same page both times: this shows nothing")
	}
}

// many opens sequences of 20 of 40 chunks of 16 pages each, with 100 own tokens.
func many(t testing.TB, n int) (*kvcache.Cache, []*kvcache.Sequence) {
	c, _ := open(t, 40*16+n*26)
	var chunks []*kvcache.Chunk
	for i := range int32(40) {
		chunks = append(chunks, acquire(t, c, document(i, 64)))
	}
	var sequences []*kvcache.Sequence
	for i := range n {
		s, err := c.Open(kvcache.Pack(slices.Concat(chunks, chunks)[i%40:][:20]...), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Extend(100); err != nil {
			t.Fatal(err)
		}
		sequences = append(sequences, s)
	}
	return c, sequences
}

func BenchmarkTable(b *testing.B) {
	_, sequences := many(b, 256)
	var table kvcache.Table
	var segments []schedule.Segment
	b.ReportAllocs()
	for b.Loop() {
		table.Reset()
		segments = segments[:0]
		for _, s := range sequences {
			var err error
			if segments, err = table.Add(segments, s); err != nil {
				b.Fatal(err)
			}
		}
	}
}
