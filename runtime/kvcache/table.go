package kvcache

import (
	"slices"

	"github.com/kgen-project/kgen/runtime/schedule"
)

// Table is the page table of one step: the pages of every sequence in it, a
// chunk's once however many sequences hold it. Reuse it from step to step: it
// allocates nothing once it has grown. The zero Table is empty. A table is for
// sequences of one cache.
//
// A step's sequences are mostly those of the step before, with a token more each. The pages of
// chunks come first, so that those stay where they were as long as sequences hold
// what they held; own tokens' pages are behind them.
type Table struct {
	Pages  []int32 // for abi.AttendParams.PageTable
	Chunks int     // whose pages these are, beside own tokens'

	chunks    []tableChunk // Chunks of them of this step, and behind them those that are left of the step before
	places    []int32      // by entry.slot: where the entry is in chunks, if it is there
	sequences []tableSequence
	extended  int  // of them, in this step
	before    int  // of them, in the step before
	follows   bool // the chunks so far are those that so many sequences of the step before had met
	mixed     bool // there are other pages between those of chunks, which none can follow
}

// tableChunk is a residence of an entry in a table.
type tableChunk struct {
	serial uint64
	page   int32 // its first
}

// tableSequence is a sequence in a table.
type tableSequence struct {
	layout   uint64
	segments []schedule.Segment
	own      []int32 // pages of own tokens
	chunks   int     // that it and those before it have met
	pages    int     // of these
}

// Reset empties the table.
func (t *Table) Reset() {
	t.Pages, t.Chunks = t.Pages[:0], 0
	if t.mixed {
		t.extended = 0
	}
	t.before, t.extended, t.follows, t.mixed = t.extended, 0, true, false
}

// Append adds pages, such as those an [Encode] got, and returns the index of
// the first.
func (t *Table) Append(pages []int32) int32 {
	t.follows, t.mixed = false, true
	return t.append(pages)
}

func (t *Table) append(pages []int32) int32 {
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
	dst = t.add(dst, s)
	if s.tokens > 0 {
		dst = append(dst, schedule.Segment{Page: t.Append(s.pages), Tokens: s.tokens, Offset: s.offset, Own: true})
	}
	return dst, nil
}

// add appends the segments of what a sequence holds.
func (t *Table) add(dst []schedule.Segment, s *Sequence) []schedule.Segment {
	if n := int(s.cache.numbered); n > len(t.places) {
		t.places = append(t.places, make([]int32, n-len(t.places))...)
	}
	// This is the inner loop of a step's listing: segments are written where they stand.
	first := len(dst)
	dst = slices.Grow(dst, len(s.segments)+1)[:first+len(s.segments)]
	for i, g := range s.segments {
		e := g.entry
		at := int(t.places[e.slot])
		if at >= t.Chunks || t.chunks[at].serial != e.serial {
			at = t.addChunk(e)
		}
		to := &dst[first+i]
		to.Page, to.Tokens, to.Offset, to.Own = t.chunks[at].page, e.tokens, g.offset, false
	}
	return dst
}

// addChunk adds the pages of an entry, and returns where it is in chunks.
func (t *Table) addChunk(e *entry) int {
	at := t.Chunks
	t.Chunks++
	t.places[e.slot] = int32(at)
	t.follows = t.follows && at < len(t.chunks) && t.chunks[at].serial == e.serial
	if !t.follows {
		t.chunks = append(t.chunks[:at], tableChunk{serial: e.serial})
	}
	t.chunks[at].page = t.append(e.pages)
	return at
}

// Extend extends a sequence by n tokens as [Sequence.Extend] does, adds it to the table and
// appends the tokens' slots as [Sequence.Slots] does: what a step does with each of its
// sequences. It returns the segments, as Add does, and their [schedule.Sequence.Layout]. Those
// are the table's until the next Reset, and own tokens have their Page from [Table.AddOwn], which
// comes behind all sequences. Where it fails, nothing has changed.
func (t *Table) Extend(slots []int32, s *Sequence, n int) (_ []schedule.Segment, _ []int32, layout uint64, err error) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if err := s.check(); err != nil {
		return nil, slots, 0, err
	}
	if err := s.extend(n); err != nil {
		return nil, slots, 0, err
	}
	if t.extended == len(t.sequences) {
		t.sequences = append(t.sequences, tableSequence{})
	}
	to := &t.sequences[t.extended]
	known := t.extended < t.before && t.follows
	if known && to.layout == s.layout {
		t.Chunks, t.Pages = to.chunks, t.Pages[:to.pages]
	} else {
		to.layout, to.segments = s.layout, t.add(to.segments[:0], s)
		t.follows = t.follows && known && t.Chunks == to.chunks
		to.chunks, to.pages = t.Chunks, len(t.Pages)
	}
	t.extended++
	to.segments, to.own = to.segments[:len(s.segments)], s.pages
	if s.tokens > 0 {
		to.segments = append(to.segments, schedule.Segment{Tokens: s.tokens, Offset: s.offset, Own: true})
	}
	return to.segments, s.cache.config.Shape.Slots(slots, s.pages, int(s.tokens)-n, int(s.tokens)), s.layout, nil
}

// AddOwn adds the pages of own tokens, of all sequences that were extended.
func (t *Table) AddOwn() {
	for i := range t.sequences[:t.extended] {
		of := &t.sequences[i]
		if last := len(of.segments) - 1; last >= 0 && of.segments[last].Own {
			of.segments[last].Page = t.append(of.own)
		}
		of.own = nil
	}
}
