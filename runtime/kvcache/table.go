package kvcache

import (
	"slices"

	"github.com/kgen-project/kgen/runtime/schedule"
)

// Table is the page table of one step: the pages of every sequence in it, a
// chunk's once however many sequences hold it. Reuse it from step to step: it
// allocates nothing once it has grown. The zero Table is empty. A table is for
// sequences of one cache.
type Table struct {
	Pages  []int32 // for abi.AttendParams.PageTable
	Chunks int     // whose pages these are, beside own tokens'

	step   uint64
	places []place // by entry.slot
}

// place says that an entry's pages of one residence begin at page in one step.
type place struct {
	step, serial uint64
	page         int32
}

// Reset empties the table.
func (t *Table) Reset() {
	t.Pages, t.Chunks = t.Pages[:0], 0
	t.step++
}

// Append adds pages, such as those an [Encode] got, and returns the index of
// the first.
func (t *Table) Append(pages []int32) int32 {
	first := int32(len(t.Pages))
	t.Pages = append(t.Pages, pages...)
	return first
}

// Add appends a sequence's segments to dst, in order. Own are the own tokens
// behind the last chunk, if there are any: those before it are as a chunk. Segments of
// one chunk have the same Page, in whatever sequence. The table is valid for work queued on the cache's stream
// before the sequence is next changed.
func (t *Table) Add(dst []schedule.Segment, s *Sequence) ([]schedule.Segment, error) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if err := s.check(); err != nil {
		return dst, err
	}
	return t.add(dst, s), nil
}

// Extend is [Sequence.Extend], [Table.Add] and [Sequence.Slots] of the n tokens, in one: what
// a step does with each of its sequences. layout is [schedule.Sequence.Layout]. Where it
// fails, nothing has changed.
func (t *Table) Extend(dst []schedule.Segment, slots []int32, s *Sequence, n int) (_ []schedule.Segment, _ []int32, layout uint64, err error) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if err := s.check(); err != nil {
		return dst, slots, 0, err
	}
	if err := s.extend(n); err != nil {
		return dst, slots, 0, err
	}
	return t.add(dst, s), s.cache.config.Shape.Slots(slots, s.pages, int(s.tokens)-n, int(s.tokens)), s.layout, nil
}

func (t *Table) add(dst []schedule.Segment, s *Sequence) []schedule.Segment {
	if n := int(s.cache.numbered); n > len(t.places) {
		t.places = append(t.places, make([]place, n-len(t.places))...)
	}
	// This is the inner loop of a step's listing: segments are written where they stand.
	first := len(dst)
	dst = slices.Grow(dst, len(s.segments)+1)[:first+len(s.segments)]
	for i, g := range s.segments {
		e := g.entry
		p := &t.places[e.slot]
		if p.step != t.step || p.serial != e.serial {
			*p = place{step: t.step, serial: e.serial, page: t.Append(e.pages)}
			t.Chunks++
		}
		to := &dst[first+i]
		to.Page, to.Tokens, to.Offset, to.Own = p.page, e.tokens, g.offset, false
	}
	if s.tokens > 0 {
		dst = append(dst, schedule.Segment{Page: t.Append(s.pages), Tokens: s.tokens, Offset: s.offset, Own: true})
	}
	return dst
}
