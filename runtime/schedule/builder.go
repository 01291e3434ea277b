package schedule

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Builder is [Build] with memory that it keeps from call to call: once it has
// seen its largest step it allocates nothing. It is for one goroutine at a time.
// Nothing writes the Reserved fields of its lists, which stay the zeros that they began as.
type Builder struct {
	items     []abi.Item
	runs      []abi.Run
	slotBegin []int32
	tiles     []tile
	parts     []part  // of the tiles, one tile's behind the other's
	keys      []int32 // of items that are tried
	order     []int32 // sequences by their first query token
	buckets   [sortBuckets + 1]int32
	readers   readers
}

// tile is some query tokens of one sequence.
type tile struct {
	begin, count, index int32 // as QBegin, QCount and QIndex of its items
	block               int32 // query tokens of the sequence
	lowest              int32 // smallest position of its query tokens
	parts               int32 // its keys are cut into so many
	items               int32 // that have them
	shared              int32 // partial slots of each query token before those of the parts
	unit                int   // distance of the cuts
}

// part is one of a tile, or several that are an item without a place in the list yet.
type part struct {
	end  int32 // of its runs, which begin where those of the part before end
	keys int32 // that its runs have
}

// Build makes the lists as the function [Build] does. They share memory with b
// and stay as they are until the next call.
func (b *Builder) Build(sequences []Sequence, o Options) (Lists, error) {
	if err := o.check(); err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	tokens, err := b.checkOrder(sequences)
	if err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	b.readers.see(sequences, o.OnceTokens)
	lists, err := b.build(sequences, nil, &o, tokens)
	if err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	return lists, nil
}

// known is what is known of a sequence that has been checked.
type known struct {
	total  int   // tokens of its segments
	shared int32 // slots of shared decode of each of its query tokens, before those of its parts
}

// build makes the lists of sequences, whose segments are among those that b.readers has
// seen; of nil for of, they are checked, and have no slots of shared decode. Where a sequence has some, its items are partial, and
// without segments it has no item.
func (b *Builder) build(sequences []Sequence, of []known, o *Options, tokens int) (Lists, error) {
	if o.PadTokens > 0 {
		if tokens > o.PadTokens {
			return Lists{}, fmt.Errorf("%w: %d query tokens, there is room for %d", ErrFixedSize, tokens, o.PadTokens)
		}
		tokens = o.PadTokens
	}
	b.runs, b.tiles, b.parts = b.runs[:0], b.tiles[:0], b.parts[:0]
	b.slotBegin = resize(b.slotBegin, tokens+1)
	clear(b.slotBegin)
	for i := range sequences {
		s := &sequences[i]
		if of != nil {
			b.add(s, o, of[i])
			continue
		}
		total, err := s.check(o)
		if err != nil {
			return Lists{}, fmt.Errorf("sequence %d: %w", i, err)
		}
		b.add(s, o, known{total: total})
	}
	perItem, scratch := int32(1), 0
	if o.Fold {
		perItem = b.partsPerItem(o)
	}
	if perItem > 1 {
		scratch = b.fold(perItem)
	}
	slots, err := b.countSlots(scratch)
	if err != nil {
		return Lists{}, err
	}
	n := len(b.parts)
	if o.PadItems > 0 {
		if n > o.PadItems {
			return Lists{}, fmt.Errorf("%w: %d work items, there is room for %d", ErrFixedSize, n, o.PadItems)
		}
		b.items = resize(b.items, o.PadItems)
		clear(b.items[n:])
	} else {
		b.items = resize(b.items, n)
	}
	b.place(perItem, int32(slots-scratch))
	return Lists{Items: b.items, Runs: b.runs, SlotBegin: b.slotBegin, Slots: slots, PartsPerItem: int(perItem)}, nil
}

// add appends the tiles of a sequence, with their parts and runs.
// SlotBegin[t+1] becomes the number of slots of token t.
func (b *Builder) add(s *Sequence, o *Options, of known) {
	n, total, shared := int32(len(s.Positions)), of.total, of.shared
	if shared > 0 && len(s.Segments) == 0 {
		b.addSlots(s.QueryBegin, n, shared)
		return
	}
	perTile, tiles := n, 1
	if most := int32(o.Rows / o.Group); n > most {
		perTile, tiles = most, int((n-1)/most)+1
	}
	unit := o.splitTokens(total, tiles)
	// A cut or the gap of a window makes one run more.
	most := 2*len(s.Segments) + 1
	if total >= unit {
		most += total / unit
	}
	for i := int32(0); i < n; i += perTile {
		t := tile{begin: s.QueryBegin + i, count: min(perTile, n-i), index: i, block: n, lowest: s.Positions[i], shared: shared, unit: unit}
		for _, p := range s.Positions[i+1 : i+t.count] {
			t.lowest = min(t.lowest, p)
		}
		b.runs, b.parts = slices.Grow(b.runs, most+1), slices.Grow(b.parts, most+1)
		before := len(b.parts)
		// Two tiles walk the same keys at about the same time.
		b.addRuns(&t, s.Segments, o, tiles <= 2)
		t.parts = int32(len(b.parts) - before)
		t.items = t.parts
		b.tiles = append(b.tiles, t)
		if n := t.parts + shared; n > 1 {
			b.addSlots(t.begin, t.count, n)
		}
	}
}

// addSlots gives each of count query tokens n slots.
func (b *Builder) addSlots(begin, count, n int32) {
	for token := begin; token < begin+count; token++ {
		b.slotBegin[token+1] = n
	}
}

// addRuns appends the runs and the parts of a tile; there is room for them. This
// is the inner loop of a step, so its state is in local variables. alone says that no
// other tile reads the sequence's keys at another time.
func (b *Builder) addRuns(t *tile, segments []Segment, o *Options, alone bool) {
	runs, n := b.runs[:cap(b.runs)], len(b.runs)
	parts, m := b.parts[:cap(b.parts)], len(b.parts)
	keys := 0 // of the part
	mask := max(1, o.PageSize) - 1
	unit := t.unit
	cut := unit // the end of the part, counted from the start of the segment
	for i := range segments {
		segment := &segments[i]
		end, causal := int(segment.Tokens), int32(abi.Visible)
		if segment.Own && o.Causal {
			causal = segment.Tokens - t.block
			end = min(end, int(t.index+t.count+causal))
		}
		once := int32(0)
		if alone && b.readers.one(segment) {
			once = 1
		}
		begin, stop, resume := 0, end, end // what the tile sees is begin to stop and resume to end
		if o.Window > 0 {
			stop, resume = o.gap(segment, t.lowest, end)
		}
		for {
			for begin < stop {
				if begin >= cut {
					if keys > 0 {
						parts[m] = part{int32(n), int32(keys)}
						runs[n-1].EndsPart = 1
						m++
						keys = 0
					}
					for cut <= begin {
						cut += unit
					}
				}
				// Up to the first page that begins at or behind the cut, and on from there
				// to the one after the next cut. Nobody can foretell whether a cut is in a
				// segment, so its part and the second run are written in any case, and
				// counted by inside, which is 1 or 0. Field by field: the copy of a struct
				// just made would wait for its stores.
				next := min(stop, (cut+mask)&^mask)
				last, inside := next, 0
				if unit > mask { // else the page may hold the next cut too
					last = min(stop, (cut+unit+mask)&^mask)
					inside = int(uint(next-stop) >> (bits.UintSize - 1))
				}
				r := runs[n : n+2]
				r[0].Page, r[0].Begin, r[0].End, r[0].Offset = segment.Page, int32(begin), int32(next), segment.Offset
				r[0].Causal, r[0].Once, r[0].EndsPart = causal, once, int32(inside)
				r[1].Page, r[1].Begin, r[1].End, r[1].Offset = segment.Page, int32(next), int32(last), segment.Offset
				r[1].Causal, r[1].Once, r[1].EndsPart = causal, once, 0
				keys += next - begin
				parts[m] = part{int32(n + 1), int32(keys)}
				m += inside
				n += 1 + inside
				keys = keys&(inside-1) + last - next
				cut += unit & -inside
				begin = last
			}
			if stop == end {
				break
			}
			begin, stop = resume, end
		}
		cut -= int(segment.Tokens)
	}
	parts[m] = part{int32(n), int32(keys)}
	if keys > 0 {
		runs[n-1].EndsPart = 1
	}
	b.runs, b.parts = runs[:n], parts[:m+1]
}

// gap is the tokens of a segment that no row of a tile sees, stop to resume,
// of those before end: they are behind the sink tokens and before the window.
func (o *Options) gap(s *Segment, lowest int32, end int) (stop, resume int) {
	// Before first, every key is Window or more positions behind every row.
	first := max(0, int(lowest)-o.Window+1-int(s.Offset))
	first -= first % max(1, o.PageSize)
	sinks := max(0, o.SinkTokens-int(s.Offset))
	if first <= min(sinks, end) {
		return end, end
	}
	return min(sinks, end), min(first, end)
}

// countSlots turns the numbers of slots into places, and returns how many there are with
// scratch.
func (b *Builder) countSlots(scratch int) (int, error) {
	slots := 0
	for i, n := range b.slotBegin {
		if slots += int(n); slots > math.MaxInt32-scratch {
			return 0, fmt.Errorf("more than %d partial slots; raise SplitTokens or lower MaxItems", math.MaxInt32)
		}
		b.slotBegin[i] = int32(slots)
	}
	return slots + scratch, nil
}

// splitTokens is the distance of the cuts of a sequence of so many tokens whose
// query tokens fill so many tiles.
func (o *Options) splitTokens(total, tiles int) int {
	if o.SplitTokens == 0 {
		return math.MaxInt32
	}
	if o.MaxItems == 0 {
		return o.SplitTokens
	}
	parts := o.MaxItems
	if tiles > 1 { // of a step's hundreds of sequences most are one tile, and short
		parts = max(1, parts/tiles)
	}
	limit := o.SplitTokens * parts
	if total <= limit {
		return min(o.SplitTokens, math.MaxInt32)
	}
	return min(o.SplitTokens*((total+limit-1)/limit), math.MaxInt32)
}

// sortBuckets is how finely the items are sorted by their keys: to within an
// eighth of the heaviest at worst, which is enough for an even load.
const sortBuckets = 16

// place makes the items, of at most perItem parts each, the heaviest first: a counting
// sort, which reverses the order of those of one bucket, for where keys are causal, later
// ones are heavier. Items that are in order already stay as they are. The slots that
// several parts fold by begin at scratch.
func (b *Builder) place(perItem, scratch int32) {
	most, last, sorted := int32(0), int32(math.MaxInt32), true
	for i := range b.parts {
		keys := b.parts[i].keys
		most = max(most, keys)
		sorted = sorted && keys <= last
		last = keys
	}
	shift, step := 31, int32(1) // all in one bucket, forwards
	clear(b.buckets[:])
	if !sorted {
		shift, step = bits.Len32(uint32(most)/sortBuckets), -1
		b.fillBuckets(most, shift)
	}
	i, run := 0, int32(0)
	bucket, at := int32(0), b.buckets[0] // at is the place of the bucket's next item
	for j := range b.tiles {
		t := &b.tiles[j]
		slot, stride, more := b.slotBegin[t.begin]+t.shared, t.items+t.shared, int32(1)
		if stride == 1 {
			slot, stride, more = abi.Final, 0, 0
		}
		begin, count, index := t.begin, t.count, t.index
		left := t.parts
		for _, p := range b.parts[i : i+int(t.items)] {
			if other := (most - p.keys) >> (shift & 31); other != bucket {
				b.buckets[bucket] = at
				bucket, at = other, b.buckets[other]
			}
			item := &b.items[at]
			item.QBegin, item.QCount, item.QIndex, item.RunBegin, item.RunEnd = begin, count, index, run, p.end
			item.Slot, item.SlotStride, item.Scratch = slot, stride, 0
			if n := min(perItem, left); n > 1 && t.items < t.parts {
				item.Scratch = scratch
				scratch += count * int32(foldLevels(n))
				left -= n
			}
			slot += more
			run = p.end
			at += step
		}
		i += int(t.items)
	}
}

// fillBuckets sets every bucket to the place of the last of its items.
func (b *Builder) fillBuckets(most int32, shift int) {
	bucket, n := int32(0), int32(0)
	for i := range b.parts {
		if other := (most - b.parts[i].keys) >> (shift & 31); other != bucket {
			b.buckets[bucket] += n
			bucket, n = other, 0
		}
		n++
	}
	b.buckets[bucket] += n
	end := int32(-1)
	for i := range b.buckets {
		end += b.buckets[i]
		b.buckets[i] = end
	}
}

// resize returns s with n elements, of which those that were there are kept.
func resize[T any](s []T, n int) []T {
	if n <= cap(s) {
		return s[:n]
	}
	grown := make([]T, n, n+n/4)
	copy(grown, s)
	return grown
}
