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
type Builder struct {
	items, sorted []abi.Item
	keys          []int32 // [items]: keys that each walks
	runs          []abi.Run
	slotBegin     []int32
	totals        []int   // [sequences]: tokens of the segments
	order         []int32 // sequences by their first query token
	buckets       [sortBuckets + 1]int32
}

// Build makes the lists as the function [Build] does. They share memory with b
// and stay as they are until the next call.
func (b *Builder) Build(sequences []Sequence, o Options) (Lists, error) {
	if err := o.check(); err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	tokens, err := b.check(sequences, &o)
	if err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	if o.PadTokens > 0 {
		if tokens > o.PadTokens {
			return Lists{}, fmt.Errorf("schedule: %w: %d query tokens, there is room for %d", ErrFixedSize, tokens, o.PadTokens)
		}
		tokens = o.PadTokens
	}
	b.items, b.keys, b.runs = b.items[:0], b.keys[:0], b.runs[:0]
	b.slotBegin = resize(b.slotBegin, tokens+1)
	clear(b.slotBegin)
	for i := range sequences {
		b.add(&sequences[i], &o, b.totals[i])
	}
	slots, err := b.placeSlots()
	if err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	b.sort()
	if n := len(b.items); o.PadItems > 0 {
		if n > o.PadItems {
			return Lists{}, fmt.Errorf("schedule: %w: %d work items, there is room for %d", ErrFixedSize, n, o.PadItems)
		}
		b.items = resize(b.items, o.PadItems)
		clear(b.items[n:])
	}
	return Lists{Items: b.items, Runs: b.runs, SlotBegin: b.slotBegin, Slots: slots}, nil
}

// add appends the items and runs of a sequence. Item.Slot is the number of the
// item's split, or Final; SlotBegin[t+1] is the number of slots of token t.
func (b *Builder) add(s *Sequence, o *Options, total int) {
	n := int32(len(s.Positions))
	perTile := int32(o.Rows / o.Group)
	unit := o.splitTokens(total, int(n+perTile-1)/int(perTile))
	for i := int32(0); i < n; i += perTile {
		t := tile{begin: s.QueryBegin + i, count: min(perTile, n-i), index: i, block: n, lowest: s.Positions[i], unit: unit}
		for _, p := range s.Positions[i+1 : i+t.count] {
			t.lowest = min(t.lowest, p)
		}
		// A cut or the gap of a window makes one run more.
		b.runs = slices.Grow(b.runs, 2*len(s.Segments)+total/unit+1)
		items := b.addTile(&t, s.Segments, o)
		splits := int32(len(items))
		if splits == 1 {
			items[0].Slot = abi.Final
			continue
		}
		for j := range items {
			items[j].SlotStride = splits
		}
		for token := t.begin; token < t.begin+t.count; token++ {
			b.slotBegin[token+1] = splits
		}
	}
}

// tile is some query tokens of one sequence.
type tile struct {
	begin, count, index int32 // as QBegin, QCount and QIndex of its items
	block               int32 // query tokens of the sequence
	lowest              int32 // smallest position of its query tokens
	unit                int   // distance of the cuts
}

// addTile appends and returns the items of a tile; their runs have room. This
// is the inner loop of a step, so its state is in local variables.
func (b *Builder) addTile(t *tile, segments []Segment, o *Options) []abi.Item {
	firstItem := len(b.items)
	runs, n := b.runs[:cap(b.runs)], len(b.runs)
	page := max(1, o.PageSize)
	before, cut := 0, t.unit // tokens before the segment and before the end of the split
	firstRun, keys := n, int32(0)
	for i := range segments {
		segment := &segments[i]
		end, causal := segment.Tokens, int32(abi.Visible)
		if segment.Own && o.Causal {
			causal = segment.Tokens - t.block
			end = min(end, t.index+t.count+causal)
		}
		stop, resume := end, end // what the tile sees is 0 to stop and resume to end
		if o.Window > 0 {
			stop, resume = o.gap(segment, t.lowest, end)
		}
		for begin := int32(0); ; {
			if begin >= stop {
				if stop == end {
					break
				}
				begin, stop = resume, end
				continue
			}
			if at := before + int(begin); at >= cut {
				if firstRun < n {
					b.addItem(t, firstItem, firstRun, n, keys)
					firstRun, keys = n, 0
				}
				if cut += t.unit; at >= cut {
					cut = (at/t.unit + 1) * t.unit
				}
			}
			// To the first page that begins at or behind the cut.
			next := stop
			if inSegment := cut - before; inSegment < int(stop) {
				next = int32(min(int(stop), (inSegment+page-1)/page*page))
			}
			// Field by field: the copy of a struct just made would wait for its stores.
			r := &runs[n]
			r.Page, r.Begin, r.End, r.Offset, r.Causal, r.Reserved = segment.Page, begin, next, segment.Offset, causal, [3]int32{}
			keys += next - begin
			begin = next
			n++
		}
		before += int(segment.Tokens)
	}
	b.addItem(t, firstItem, firstRun, n, keys)
	b.runs = runs[:n]
	return b.items[firstItem:]
}

// gap is the tokens of a segment that no row of a tile sees, stop to resume,
// of those before end: they are behind the sink tokens and before the window.
func (o *Options) gap(s *Segment, lowest, end int32) (stop, resume int32) {
	// Before first, every key is Window or more positions behind every row.
	first := max(0, int(lowest)-o.Window+1-int(s.Offset))
	first -= first % max(1, o.PageSize)
	sinks := max(0, o.SinkTokens-int(s.Offset))
	if first <= min(sinks, int(end)) {
		return end, end
	}
	return int32(min(sinks, int(end))), int32(min(first, int(end)))
}

// addItem appends an item of a tile, the runs from first to end.
func (b *Builder) addItem(t *tile, firstItem, first, end int, keys int32) {
	slot := int32(len(b.items) - firstItem)
	b.items = append(b.items, abi.Item{})
	item := &b.items[len(b.items)-1]
	item.QBegin, item.QCount, item.QIndex = t.begin, t.count, t.index
	item.RunBegin, item.RunEnd, item.Slot = int32(first), int32(end), slot
	b.keys = append(b.keys, keys)
}

// placeSlots turns the numbers of slots into places.
func (b *Builder) placeSlots() (int, error) {
	slots := 0
	for i, n := range b.slotBegin {
		if slots += int(n); slots > math.MaxInt32 {
			return 0, fmt.Errorf("more than %d partial slots; raise SplitTokens or lower MaxItems", math.MaxInt32)
		}
		b.slotBegin[i] = int32(slots)
	}
	for i := range b.items {
		if item := &b.items[i]; item.Slot != abi.Final {
			item.Slot += b.slotBegin[item.QBegin]
		}
	}
	return slots, nil
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
	limit := o.SplitTokens * max(1, o.MaxItems/tiles)
	return min(o.SplitTokens*max(1, (total+limit-1)/limit), math.MaxInt32)
}

// sortBuckets is how finely the items are sorted by their keys: to within an
// eighth of the heaviest at worst, which is enough for an even load.
const sortBuckets = 16

// sort puts the heaviest items first: a counting sort, which reverses the order of
// items of one bucket. Neighbours of one bucket, as a cut sequence gives them,
// are counted and moved together.
func (b *Builder) sort() {
	most, sorted := int32(0), true
	for i, n := range b.keys {
		most = max(most, n)
		sorted = sorted && (i == 0 || n <= b.keys[i-1])
	}
	if sorted {
		return
	}
	shift := bits.Len32(uint32(most) / sortBuckets)
	clear(b.buckets[:])
	for i := 0; i < len(b.keys); {
		bucket, n := b.alike(i, most, shift)
		b.buckets[bucket+1] += n
		i += int(n)
	}
	for i := 1; i < len(b.buckets); i++ {
		b.buckets[i] += b.buckets[i-1]
	}
	b.sorted = resize(b.sorted, len(b.items))
	for i := 0; i < len(b.keys); {
		bucket, n := b.alike(i, most, shift)
		// From the bucket's end: where keys are causal, later items are heavier.
		for _, item := range b.items[i : i+int(n)] {
			b.buckets[bucket+1]--
			b.sorted[b.buckets[bucket+1]] = item
		}
		i += int(n)
	}
	b.items, b.sorted = b.sorted, b.items
}

// alike is the bucket of item i, and how many from it on are of that bucket.
func (b *Builder) alike(i int, most int32, shift int) (bucket, n int32) {
	bucket, n = (most-b.keys[i])>>shift, 1
	for _, k := range b.keys[i+1:] {
		if (most-k)>>shift != bucket {
			break
		}
		n++
	}
	return bucket, n
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
