package schedule

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// chunk is one that sequences of the step hold, numbered in the order in which
// they are met.
type chunk struct {
	page, tokens int32
	holds        int32 // segments that are of it
	queries      int32 // query tokens of those
	walks        int32 // times that decode would walk it
	stray        int32 // not 0: some hold does not come right behind one of the chunk before

	// Of one that is shared.
	parts   int32 // of the bundle, for its first chunk; else 0
	next    int32 // place among its query tokens of the next hold's; negative: not shared
	offsets int32 // place of its first query token's offset
	members int32 // of its first query token's member, for a bundle's first chunk
}

// golden is 2^64 over the golden ratio: multiples of it are far apart.
const golden = 0x9e3779b97f4a7c15

// invert finds the chunks of the sequences, and checks the sequences.
func (b *SharedBuilder) invert(sequences []Sequence, o *Options) error {
	segments := 0
	for i := range sequences {
		segments += len(sequences[i].Segments)
	}
	size := 1 << bits.Len(uint(2*segments)) // at most half full
	b.table = resize(b.table, size)
	clear(b.table)
	b.keys, b.first, b.empty = resize(b.keys, segments)[:0], b.first[:0], false
	b.numbers = resize(b.numbers, segments)
	b.known = resize(b.known, len(sequences))
	numbers, pairs := b.numbers, 0 // pairs of a query token and a segment: members, at most, of one part each
	for i := range sequences {
		s := &sequences[i]
		total, err := s.check(o)
		if err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		b.known[i] = known{total: total}
		b.number(i, s.Segments, numbers[:len(s.Segments)])
		numbers = numbers[len(s.Segments):]
		pairs += len(s.Positions) * len(s.Segments)
	}
	if pairs > math.MaxInt32 {
		return fmt.Errorf("%d pairs of a query token and a segment, want at most %d", pairs, math.MaxInt32)
	}
	b.count(sequences, o)
	return nil
}

// number finds the chunks of a sequence's segments, for which there is room in keys. The
// number of a segment that is of no chunk is negative.
func (b *SharedBuilder) number(sequence int, segments []Segment, numbers []int32) {
	table, keys := b.table, b.keys
	mask, shift := uint64(len(table)-1), 64-bits.Len(uint(len(table)-1))
	for i := range segments {
		g := &segments[i]
		if g.Own || g.Tokens == 0 {
			numbers[i] = -1
			b.empty = b.empty || !g.Own
			continue
		}
		key := uint64(g.Page)<<32 | uint64(g.Tokens)
		for at := key * golden >> (shift & 63); ; at++ {
			place := &table[at&mask]
			n := *place - 1
			if n < 0 {
				n = int32(len(keys))
				*place = n + 1
				keys = keys[:n+1]
				keys[n] = key
				b.first = append(b.first, first{int32(sequence), int32(i)})
			} else if keys[n] != key {
				continue
			}
			numbers[i] = n
			break
		}
	}
	b.keys = keys
}

// count says of each chunk by whom it is held.
func (b *SharedBuilder) count(sequences []Sequence, o *Options) {
	b.chunks = resize(b.chunks, len(b.keys))
	clear(b.chunks)
	for i, key := range b.keys {
		c := &b.chunks[i]
		c.page, c.tokens, c.next = int32(key>>32), int32(uint32(key)), -1
	}
	b.seen = resize(b.seen, len(b.keys))
	clear(b.seen)
	perTile, numbers, chunks := o.Rows/o.Group, b.numbers, b.chunks
	for i := range sequences {
		s := &sequences[i]
		queries, tiles := int32(len(s.Positions)), int32(1)
		if len(s.Positions) > perTile {
			tiles = int32((len(s.Positions) + perTile - 1) / perTile)
		}
		of := numbers[:len(s.Segments)]
		numbers = numbers[len(s.Segments):]
		if o.Window > 0 {
			b.see(s, of, tiles, o)
		}
		before := int32(-2) // number of the chunk before
		for _, n := range of {
			if n < 0 {
				continue
			}
			c := &chunks[n]
			c.holds++
			c.queries += queries
			c.walks += tiles
			c.stray |= (before + 1) ^ n
			before = n
		}
	}
}

// walked is the keys of a chunk that decode would walk.
func (b *SharedBuilder) walked(n int, o *Options) int64 {
	if o.Window > 0 {
		return b.seen[n]
	}
	return int64(b.chunks[n].walks) * int64(b.chunks[n].tokens)
}

// see counts what decode would read of a sequence's chunks, were its query tokens one
// tile, for so many tiles. Those of which it would read nothing are not held.
func (b *SharedBuilder) see(s *Sequence, of []int32, tiles int32, o *Options) {
	lowest := slices.Min(s.Positions)
	for i, n := range of {
		if n < 0 {
			continue
		}
		end := int(s.Segments[i].Tokens)
		stop, resume := o.gap(&s.Segments[i], lowest, end)
		keys := stop + end - resume
		if keys == 0 {
			of[i] = -1
		}
		b.seen[n] += int64(keys) * int64(tiles)
	}
}

// divided is what the step before left to decode.
type divided struct {
	layouts []uint64 // of the sequences
	ends    []int32  // of what they were left with, in from
	from    []int32  // as that of the builder
	decoded bool     // and decode listed it; else it has listed whole sequences
}

// same is whether sequence i holds what it held in the step before, and was left with the same.
func (d *divided) same(i int, layout uint64, from []int32) bool {
	if i >= len(d.layouts) || d.layouts[i] != layout {
		return false
	}
	begin := int32(0)
	if i > 0 {
		begin = d.ends[i-1]
	}
	return slices.Equal(d.from[begin:d.ends[i]], from)
}

// remember keeps what a step left to decode.
func (d *divided) remember(sequences, left []Sequence, from []int32) {
	d.from = append(d.from[:0], from...)
	d.layouts, d.ends = d.layouts[:0], d.ends[:0]
	end := int32(0)
	for i := range left {
		end += int32(len(left[i].Segments))
		d.layouts, d.ends = append(d.layouts, sequences[i].Layout), append(d.ends, end)
	}
}

// divide writes the offsets of the shared chunks, and the members of the first part of
// each bundle, with slots counted from their query tokens' first ones. It returns
// what is left to decode.
func (b *SharedBuilder) divide(sequences []Sequence) []Sequence {
	b.rest = resize(b.rest, len(b.numbers))[:0]
	b.from = resize(b.from, len(b.numbers))[:0]
	b.left = resize(b.left, len(sequences))[:0]
	numbers, offsets, members := b.numbers, b.offsets, b.members
	for i := range sequences {
		s := &sequences[i]
		begin, slots, queries, tokens := len(b.rest), int32(0), int32(len(s.Positions)), 0
		for j := range s.Segments {
			g := &s.Segments[j]
			n := numbers[j]
			if n < 0 || b.chunks[n].next < 0 {
				b.rest, b.from = append(b.rest, *g), append(b.from, int32(j))
				continue
			}
			c := &b.chunks[n]
			next := c.next
			c.next = next + queries
			tokens += int(g.Tokens)
			offset, member, parts := c.offsets+next, c.members+next, c.parts
			offsets[offset] = g.Offset
			if parts > 0 {
				m := &members[member]
				m.Token, m.Slot = s.QueryBegin, slots
			}
			for q := int32(1); q < queries; q++ {
				offsets[offset+q] = g.Offset
				if parts > 0 {
					m := &members[member+q]
					m.Token, m.Slot = s.QueryBegin+q, slots
				}
			}
			slots += parts
		}
		numbers = numbers[len(s.Segments):]
		b.known[i].shared = slots
		b.known[i].total -= tokens
		left := Sequence{QueryBegin: s.QueryBegin, Positions: s.Positions, Segments: b.rest[begin:]}
		if b.divided.same(i, s.Layout, b.from[begin:]) {
			left.Layout, left.Placed = s.Layout, s.Placed
		}
		b.left = append(b.left, left)
	}
	b.divided.remember(sequences, b.left, b.from)
	return b.left
}
