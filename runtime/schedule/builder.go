package schedule

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Builder is [Build] with memory that it keeps from call to call: once it has
// seen its largest step it allocates nothing. It is for one goroutine at a time.
// Nothing writes the Reserved fields of its lists, which stay the zeros that they began as.
//
// What it has listed of a sequence it keeps too: of one that the step before had, as
// its Layout says, it lists own tokens alone. The lists are, to the bit, those of a builder
// that has seen no step.
type Builder struct {
	items     []abi.Item
	slotBegin []int32
	tiles     []tile
	keys      []int32 // of the items, one tile's behind the other's
	order     []int32 // sequences by their first query token
	buckets   [sortBuckets + 1]int32
	sums      [mostLevels]levelSum

	kept
	maker tileMaker
}

// Build makes the lists as the function [Build] does. They share memory with b
// and stay as they are until the next call.
func (b *Builder) Build(sequences []Sequence, o Options) (Lists, error) {
	if err := o.check(); err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	tokens, err := b.countTokens(sequences, &o)
	if err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	lists, err := b.build(sequences, nil, &o, tokens)
	if err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	if !b.counts || b.readers.odd {
		b.readers.see(sequences)
	}
	b.finish(sequences, &lists)
	return lists, nil
}

// known is what is known of a sequence that has been checked.
type known struct {
	total  int   // tokens of its segments
	shared int32 // slots of shared decode of each of its query tokens, before those of its parts
}

// build makes the lists of sequences, but for what finish does. Of nil for of, they are
// checked, and have no slots of shared decode. Where a sequence has some, its items are
// partial, and without segments it has no item.
func (b *Builder) build(sequences []Sequence, of []known, o *Options, tokens int) (Lists, error) {
	b.slotBegin = resize(b.slotBegin, tokens+1)
	clear(b.slotBegin)
	b.tiles = b.tiles[:0]
	if err := b.list(sequences, of, o); err != nil {
		return Lists{}, err
	}
	perItem, scratch := int32(max(1, o.PartsPerItem)), 0
	if o.choosesParts() {
		perItem = b.partsPerItem(o)
	}
	if perItem > 1 {
		scratch = b.fold(perItem)
	}
	slots, err := b.countSlots(scratch)
	if err != nil {
		return Lists{}, err
	}
	most, sorted := b.weigh()
	n := len(b.keys)
	if o.PadItems > 0 {
		if n > o.PadItems {
			return Lists{}, fmt.Errorf("%w: %d work items, there is room for %d", ErrFixedSize, n, o.PadItems)
		}
		b.items = resize(b.items, o.PadItems)
		clear(b.items[n:])
	} else {
		b.items = resize(b.items, n)
	}
	b.place(most, sorted, int32(slots-scratch))
	return Lists{Items: b.items, Runs: b.runs.all, SlotBegin: b.slotBegin, Slots: slots, PartsPerItem: int(perItem)}, nil
}

// list makes the tiles of the sequences, with their parts and runs. SlotBegin[t+1] becomes
// the number of slots of token t.
func (b *Builder) list(sequences []Sequence, of []known, o *Options) error {
	b.begin(o, of == nil)
	for i := range sequences {
		s := &sequences[i]
		var checked *known
		if of != nil {
			checked = &of[i]
		}
		found := b.find(sequences[i:])
		if found && b.keep(s, checked, o) {
			continue
		}
		if checked == nil {
			total, err := s.check(o)
			if err != nil {
				return fmt.Errorf("sequence %d: %w", i, err)
			}
			checked = &known{total: total}
		}
		if !found && b.counts {
			b.readers.add(s.Segments)
		}
		b.add(s, checked, o)
	}
	b.end()
	return nil
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

// sortBuckets is how finely the items are sorted by their keys: to within an
// eighth of the heaviest at worst, which is enough for an even load.
const sortBuckets = 16

// weigh lists the keys of the items. It returns the most of them, and whether they are in order
// already.
func (b *Builder) weigh() (most int32, sorted bool) {
	b.keys = b.keys[:0]
	last := int32(math.MaxInt32)
	sorted = true
	add := func(keys int32) {
		b.keys = append(b.keys, keys)
		most = max(most, keys)
		sorted = sorted && keys <= last
		last = keys
	}
	parts := b.parts.all
	for i := range b.tiles {
		t := &b.tiles[i]
		before := int32(0)
		for end := t.perItem; end < t.parts; end += t.perItem {
			through := parts[end-1].keys
			add(through - before)
			before = through
		}
		add(t.keys - before)
		parts = parts[t.parts:]
	}
	return most, sorted
}

// place makes the items, those of one group of tiles behind those of the group before. The slots that several parts
// fold by begin at scratch.
func (b *Builder) place(most int32, sorted bool, scratch int32) {
	p := placer{builder: b, most: most, shift: 31, step: 1, keys: b.keys, parts: b.parts.all, scratch: scratch} // all in one bucket, forwards
	if !sorted {
		p.shift, p.step = bits.Len32(uint32(most)/sortBuckets), -1
	}
	wave := b.options.Wave
	if sorted || wave == 0 {
		p.placeGroup(b.tiles, len(b.keys))
		return
	}
	last, left := 2*int(most)*wave, 0 // keys of the last group, at least, and of those to come
	for _, keys := range b.keys {
		left += int(keys)
	}
	for tiles := b.tiles; len(tiles) > 0; {
		n, items, keys := group(tiles, p.keys, wave, left-last)
		p.placeGroup(tiles[:n], items)
		tiles, left = tiles[n:], left-keys
	}
}

// group returns how many of the tiles that are yet to be placed are the next group, how many items these
// have, of which keys begins with the keys, and how many keys in all.
//
// A group is whole sequences, of a wave of items or more: so what the tiles of a sequence read is still in
// the L2 cache as the next of them reads it. Where a step's heaviest items come first it is not, as a sequence's are
// among them at places far from each other. A group has at most so many keys as leave enough for the
// last one, with which the device is to end evenly; else it is the last.
func group(tiles []tile, keys []int32, wave, most int) (n, items, sum int) {
	for n = range tiles {
		if begins := tiles[n].index == 0; begins && items >= wave && sum <= most {
			return n, items, sum
		}
		for range tiles[n].items() {
			sum += int(keys[items])
			items++
		}
	}
	return len(tiles), items, sum
}

// placer is how far the items have been made.
type placer struct {
	builder *Builder
	most    int32
	shift   int
	step    int32
	keys    []int32 // of the items that are yet to be made
	parts   []part  // likewise
	run     int32   // the first of theirs
	scratch int32   // the first slot of theirs
}

// placeGroup makes a group's items, the heaviest first: a counting sort, which reverses the order of
// those of one bucket, for where keys are causal, later ones are heavier. Items that are in
// order already stay as they are.
func (p *placer) placeGroup(tiles []tile, count int) {
	b, most, shift, step := p.builder, p.most, p.shift, p.step
	p.fillBuckets(p.keys[:count])
	all, slotBegin, buckets, whole := b.items, b.slotBegin, &b.buckets, b.options.Whole
	keys, parts, run, scratch := p.keys, p.parts, p.run, p.scratch
	for j := range tiles {
		t := &tiles[j]
		items, perItem, of := t.items(), t.perItem, parts[:t.parts]
		slot, stride, more := slotBegin[t.begin]+t.shared, items+t.shared, int32(1)
		if stride == 1 {
			slot, stride, more = abi.Final, 0, 0
		}
		begin, count, index := t.begin, t.count, t.index
		first, next := run, int32(0) // the item's first run, and its first part
		for _, k := range keys[:items] {
			bucket := uint32(most-k) >> (shift & 31)
			at := buckets[bucket]
			buckets[bucket] = at + step
			n := min(perItem, int32(len(of))-next)
			next += n
			end := first + of[next-1].end
			item := &all[at]
			item.QBegin, item.QCount, item.QIndex, item.RunBegin, item.RunEnd = begin, count, index, run, end
			item.Slot, item.SlotStride, item.Scratch = slot, stride, 0
			if n > 1 && !whole {
				item.Scratch = scratch
				scratch += count * int32(foldLevels(n))
			}
			slot += more
			run = end
		}
		keys, parts = keys[items:], parts[len(of):]
	}
	p.keys, p.parts, p.run, p.scratch = keys, parts, run, scratch
}

// fillBuckets sets every bucket to the place of the last of its items, or, forwards, of the first.
func (p *placer) fillBuckets(keys []int32) {
	buckets, placed := &p.builder.buckets, int32(len(p.builder.keys)-len(p.keys))
	clear(buckets[:])
	if p.step > 0 {
		buckets[0] = placed
		return
	}
	for _, k := range keys {
		buckets[(p.most-k)>>(p.shift&31)]++
	}
	end := placed - 1
	for i := range buckets {
		end += buckets[i]
		buckets[i] = end
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
