package verify

import (
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/schedule"
	"github.com/kgen-project/kgen/tests/oracle"
)

// layout is where a case's KV is in one encoding's caches.
type layout struct {
	k, v      *pages
	stored    []stored
	table     []int32
	sequences []schedule.Sequence
	copies    [][]int // of each sequence's segments, in stored
	pages     []int32 // of each copy, the index in table of its first page where it stands first
}

// stored is one physical copy of a chunk.
type stored struct {
	chunk int
	first int   // position of token 0 that K is stored at; not used by raw
	slots []int // of each token
	pages []int
}

// newLayout gives every chunk pages of its own, shuffled, among others that
// nobody uses. Baked needs them for every offset a chunk stands at.
func newLayout(c *attendCase, s spec.Spec, f numeric.Format, e spec.Encoding) *layout {
	rng := rand.New(rand.NewPCG(c.layoutSeed, 0))
	size := s.Cache.PageSize
	count := 1 + rng.IntN(4)
	type copyOf struct{ chunk, first int }
	index := map[copyOf]int{}
	l := &layout{}
	for _, sequence := range c.sequences {
		for _, p := range sequence.segments {
			key := copyOf{chunk: p.chunk}
			if e == spec.Baked {
				key.first = p.offset
			}
			if _, ok := index[key]; !ok {
				index[key] = len(l.stored)
				l.stored = append(l.stored, stored{chunk: p.chunk, first: key.first})
				count += (c.chunks[p.chunk].tokens + size - 1) / size
			}
		}
	}
	heap := newHeap(rng, s.Cache, count)
	for i := range l.stored {
		st := &l.stored[i]
		tokens := c.chunks[st.chunk].tokens
		st.pages = heap.take(tokens)
		for t := range tokens {
			st.slots = append(st.slots, heap.slot(st.pages, t))
		}
	}
	table := pageTable{rng: rng}
	l.pages = make([]int32, len(l.stored))
	placed := make([]bool, len(l.stored))
	for _, sequence := range c.sequences {
		var copies []int
		scheduled := schedule.Sequence{QueryBegin: int32(sequence.queryBegin)}
		for _, p := range sequence.positions {
			scheduled.Positions = append(scheduled.Positions, int32(p))
		}
		for _, p := range sequence.segments {
			key := copyOf{chunk: p.chunk}
			if e == spec.Baked {
				key.first = p.offset
			}
			i := index[key]
			copies = append(copies, i)
			page := table.add(l.stored[i].pages)
			if !placed[i] {
				l.pages[i], placed[i] = page, true
			}
			scheduled.Segments = append(scheduled.Segments, schedule.Segment{
				Page: page, Tokens: int32(c.chunks[p.chunk].tokens),
				Offset: int32(p.offset), Own: p.own,
			})
		}
		l.sequences = append(l.sequences, scheduled)
		l.copies = append(l.copies, copies)
	}
	l.table = table.entries
	l.k = newPages(s.Cache, f, c.kvHeads, s.Model.HeadDim, count)
	l.v = newPages(s.Cache, f, c.kvHeads, s.Model.VHeadDim, count)
	return l
}

// encode fills the pages exactly as append should: K rotated in float64 and
// rounded once.
func (l *layout) encode(c *attendCase, s spec.Spec, e spec.Encoding) {
	for _, st := range l.stored {
		chunk := c.chunks[st.chunk]
		k := chunk.k
		if e != spec.Raw {
			k = oracle.Rotate(s.Rope, k, c.kvHeads, s.Model.HeadDim, count(st.first, chunk.tokens))
		}
		for t, slot := range st.slots {
			l.k.set(slot, k[t*c.kvHeads*s.Model.HeadDim:])
			l.v.set(slot, chunk.v[t*c.kvHeads*s.Model.VHeadDim:])
		}
	}
}

// count is n whole numbers from first.
func count(first, n int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = first + i
	}
	return x
}
