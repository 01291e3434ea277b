package kvcache_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// batchOf extends each of the sequences by n tokens.
func batchOf(sequences []*kvcache.Sequence, n int) []kvcache.Extension {
	var batch []kvcache.Extension
	for _, s := range sequences {
		batch = append(batch, kvcache.Extension{Sequence: s, Tokens: n})
	}
	return batch
}

// A step's table allocates nothing once it has grown.
func TestNoAllocation(t *testing.T) {
	c, sequences := many(t, 64)
	var table kvcache.Table
	var segments []schedule.Segment
	var slots []int32
	batch := batchOf(sequences, 1)
	step := func(fill func()) func() {
		return func() {
			slots = slots[:0]
			fill()
			for _, s := range sequences {
				if err := s.Truncate(s.Tokens() - 1); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	extend := step(func() {
		var err error
		if _, slots, err = table.Extend(slots, batch); err != nil {
			t.Fatal(err)
		}
	})
	add := step(func() {
		table.Reset()
		segments = segments[:0]
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
	})
	for name, step := range map[string]func(){"Add": add, "Extend": extend} {
		if n := testing.AllocsPerRun(20, step); n > 0 {
			t.Errorf("%s: %v allocations a step", name, n)
		}
		if want := 20*16 + 64; len(table.Pages) < want || len(slots) != 64 {
			t.Errorf("%s: %d pages, %d slots; %+v", name, len(table.Pages), len(slots), c.Stats())
		}
	}
	if len(segments) != 64*21 {
		t.Errorf("%d segments", len(segments))
	}
}

// Own tokens that outgrow their room, or of which some are taken away, stand where those of a
// table do that has seen no step, and Changed has what is not as it was.
func TestOwnPagesGrow(t *testing.T) {
	_, sequences := many(t, 24)
	for _, s := range sequences[5:] {
		s.Close() // they leave their pages
	}
	sequences = sequences[:5]
	var table kvcache.Table
	var copied []int32
	rng := rand.New(rand.NewPCG(1, 2))
	for step := range 200 {
		batch := batchOf(sequences, 0)
		i := rng.IntN(len(batch))
		if s := sequences[i]; s.Tokens() > 500 {
			if err := s.Truncate(rng.IntN(400)); err != nil {
				t.Fatal(err)
			}
		}
		batch[i].Tokens = 1 + rng.IntN(60)
		if _, _, err := table.Extend(nil, batch); err != nil {
			t.Fatal(err)
		}
		var fresh kvcache.Table
		if _, _, err := fresh.Extend(nil, batchOf(sequences, 0)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(table.Pages, fresh.Pages) {
			t.Fatalf("step %d: pages %v, want %v", step, table.Pages, fresh.Pages)
		}
		copied = slices.Grow(copied, len(table.Pages))[:len(table.Pages)]
		for _, c := range table.Changed {
			copy(copied[c.Begin:c.End], table.Pages[c.Begin:c.End])
		}
		if !slices.Equal(table.Pages, copied) {
			t.Fatalf("step %d: more has changed than %v", step, table.Changed)
		}
	}
}

// Where a sequence of a batch can't be extended, none is, and the table goes on as ever.
func TestExtendAllOrNone(t *testing.T) {
	c, sequences := many(t, 4)
	if err := sequences[3].Truncate(0); err != nil { // its pages are free
		t.Fatal(err)
	}
	var table, fresh kvcache.Table
	if _, _, err := table.Extend(nil, batchOf(sequences, 0)); err != nil {
		t.Fatal(err)
	}
	stats := c.Stats()
	closed, err := c.Open(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, test := range []struct {
		name string
		last kvcache.Extension
		want error
	}{
		{"closed", kvcache.Extension{Sequence: closed}, kvcache.ErrClosed},
		{"position", kvcache.Extension{Sequence: sequences[3], Tokens: math.MaxInt32}, kvcache.ErrPosition},
		{"pages", kvcache.Extension{Sequence: sequences[3], Tokens: 10000}, kvcache.ErrNoPages},
	} {
		slots, err := []int32{7}, error(nil)
		if _, slots, err = table.Extend(slots, append(batchOf(sequences[:3], 5), test.last)); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		} else if want := "sequence 3: "; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %q, want %q first", test.name, err, want)
		}
		if len(slots) != 1 || len(table.Pages) > 0 || table.Chunks > 0 {
			t.Errorf("%s: slots %v, %d pages, %d chunks are left", test.name, slots, len(table.Pages), table.Chunks)
		}
		for i, s := range sequences {
			if n := s.Tokens(); n != []int{100, 100, 100, 0}[i] {
				t.Errorf("%s: sequence %d has %d own tokens", test.name, i, n)
			}
		}
		now := c.Stats()
		now.Misses, now.Evictions = stats.Misses, stats.Evictions
		if diff := cmp.Diff(stats, now); diff != "" {
			t.Errorf("%s: -before +after:\n%s", test.name, diff)
		}
	}
	for _, table := range []*kvcache.Table{&table, &fresh} {
		if _, _, err := table.Extend(nil, batchOf(sequences, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(table.Pages, fresh.Pages) || table.Chunks != fresh.Chunks {
		t.Errorf("%d pages of %d chunks, want those of a table that has seen no step: %d of %d", len(table.Pages), table.Chunks, len(fresh.Pages), fresh.Chunks)
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
	batch := batchOf(sequences, 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := table.Extend(nil, batch); err != nil {
			b.Fatal(err)
		}
	}
}
