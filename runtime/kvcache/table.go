package kvcache

import (
	"fmt"
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
// what they held; own tokens' pages are behind them, with room for more.
type Table struct {
	Pages  []int32 // for abi.AttendParams.PageTable
	Chunks int     // whose pages these are, beside own tokens'

	// Number counts what Reset has begun, and Changed are the ranges of Pages that are not
	// what they were, at the same places, at the number before.
	Number  uint64
	Changed []schedule.Span

	chunks    []tableChunk // Chunks of them of this step, and behind them those that are left of the step before
	places    []int32      // by entry.slot: where the entry is in chunks, if it is there
	sequences []Extended
	extended  int  // of them, in this step
	before    int  // of them, in the step before
	follows   bool // the chunks so far are those that so many sequences of the step before had met
	mixed     bool // there are other pages between those of chunks, which none can follow
	own       int  // where own tokens' pages begin
}

// tableChunk is a residence of an entry in a table.
type tableChunk struct {
	serial uint64
	page   int32 // its first
}

// Extension is a sequence with the number of its new own tokens.
type Extension struct {
	Sequence *Sequence
	Tokens   int
}

// Extended is a sequence in a table.
type Extended struct {
	Segments       []schedule.Segment // in order, those of own tokens last; the table's until the next Reset
	Layout, Placed uint64             // see [schedule.Sequence]

	chunks int // that it and those before it have met
	pages  int // of these

	// Of own tokens.
	paged uint64 // names the pages: see Sequence.paged
	room  int    // of the pages
}

// Reset empties the table.
func (t *Table) Reset() {
	t.Pages, t.Chunks, t.Changed = t.Pages[:0], 0, t.Changed[:0]
	t.Number++
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
	t.Changed = schedule.AppendSpan(t.Changed, first, int32(len(t.Pages)))
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

// Extend makes the table that of a batch, each of whose sequences it extends as
// [Sequence.Extend] does and whose new tokens' slots it appends as [Sequence.Slots] does: all
// that a step does with its sequences, each of which is in the batch once. Own tokens are as
// Add has them. Where it fails, no sequence has changed, and the table is empty.
func (t *Table) Extend(slots []int32, batch []Extension) (_ []Extended, _ []int32, err error) {
	t.Reset()
	if len(batch) == 0 {
		return nil, slots, nil
	}
	c, begin := batch[0].Sequence.cache, len(slots)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(batch); n > len(t.sequences) {
		t.sequences = append(t.sequences, make([]Extended, n-len(t.sequences))...)
	}
	for i := range batch {
		if slots, err = t.extend(slots, &batch[i], i); err != nil {
			for _, x := range batch[:i] {
				x.Sequence.shorten(int(x.Sequence.tokens) - x.Tokens)
			}
			t.Reset()
			return nil, slots[:begin], fmt.Errorf("sequence %d: %w", i, err)
		}
	}
	t.extended = len(batch)
	t.addOwn(batch)
	return t.sequences[:len(batch)], slots, nil
}

// extend extends the batch's sequence i, and adds what it holds to the table.
func (t *Table) extend(slots []int32, x *Extension, i int) ([]int32, error) {
	s, to := x.Sequence, &t.sequences[i]
	if err := s.check(); err != nil {
		return slots, err
	}
	if err := s.extend(x.Tokens); err != nil {
		return slots, err
	}
	known := i < t.before && t.follows
	if known && to.Layout == s.layout {
		t.Chunks, t.Pages = to.chunks, t.Pages[:to.pages]
	} else {
		to.Layout, to.Placed, to.Segments = s.layout, s.cache.newNumber(), t.add(to.Segments[:0], s)
		t.follows = t.follows && known && t.Chunks == to.chunks
		to.chunks, to.pages = t.Chunks, len(t.Pages)
	}
	return s.cache.config.Shape.Slots(slots, s.pages, int(s.tokens)-x.Tokens, int(s.tokens)), nil
}

// OwnRoom is what the room for the pages of a sequence's own tokens is a multiple of, and how
// much of it is free at most: a page more moves none of those behind it, but once in so many.
const OwnRoom = 64

// addOwn adds own tokens, and their pages where they are not there already.
func (t *Table) addOwn(batch []Extension) {
	at := len(t.Pages)
	stays := at == t.own
	t.own = at
	for i := range batch {
		s, of := batch[i].Sequence, &t.sequences[i]
		room := (len(s.pages)/OwnRoom + 1) * OwnRoom
		stays = stays && i < t.before && of.room == room
		t.Pages = slices.Grow(t.Pages, room)[:at+room]
		if !stays || of.paged != s.paged {
			clear(t.Pages[at+copy(t.Pages[at:], s.pages):])
			of.paged, of.room = s.paged, room
			t.Changed = schedule.AppendSpan(t.Changed, int32(at), int32(at+room))
		}
		of.Segments = of.Segments[:len(s.segments)]
		if s.tokens > 0 {
			of.Segments = append(of.Segments, schedule.Segment{Page: int32(at), Tokens: s.tokens, Offset: s.offset, Own: true})
		}
		at += room
	}
}
