package schedule

import "math/bits"

// Items of several parts, whose results their kernel folds.

// productRows is the rows of a tile from which on its products take longer than its keys.
const productRows = 64

// foldedBlocks is how many blocks, for a KV head, a sequence alone is cut for where parts have as few keys as they may,
// by a kernel with Keys: for more blocks, parts have twice as many. A part that a block folds takes a kernel of many rows some 4 us
// beside its keys. (H100, 2026-11-27. 64 query tokens over 3072 and 4096: one sequence takes 9 to 12 percent longer than with
// parts of 512 keys, 2 to 16 take 10 to 19 percent less. 128 over 2048: 16 longer, 14 to 18 less. 32 over 6144 and 8192: one
// the same, 2 to 16 take 7 to 12 percent less.)
const foldedBlocks = 8

// fractions of a key are what costs are counted in, so that all is in whole numbers.
const fractions = 64

// foldCosts are the costs of a kernel's items, in keys: see [Builder.partsPerItem].
type foldCosts struct {
	idle        int // of the heaviest item what its end leaves idle, in fractions: 64 / e
	row, merged int // of an item's row, and of one that merge puts together
	launch      int // of merge
}

// foldCosts are by the rows of the kernel's tiles. Those of few wait for memory, and blocks that have
// ended leave their share of it to the others (H200: decode of 32 sequences of 8192 tokens takes
// 260 us by 16 parts an item, by 2 parts 266, by one 269). Those of many are fitted to extend of 64
// tokens by 1 to 16 sequences over 256 to 8192, with head dims of 128 and 256, by one block and by two, by 1 to 8 parts
// an item (H100, 2026-11-26: what these choose takes 0.1 to 1.3 percent longer in the mean than the best).
func (o *Options) foldCosts() foldCosts {
	if o.Rows < productRows {
		return foldCosts{idle: 1, row: 2, merged: 6, launch: 128}
	}
	return foldCosts{idle: 8, row: 3, merged: 3, launch: 64}
}

// atOnce is how many items the device runs at a time; 0: nobody says.
func (o *Options) atOnce() int {
	if o.AtOnce > 0 {
		return o.AtOnce
	}
	return o.MaxItems
}

// choosesParts is whether partsPerItem says how many parts an item has.
func (o *Options) choosesParts() bool { return o.Fold && o.PartsPerItem == 0 && o.atOnce() > 0 }

// partsPerItem is how many parts an item of this step has: see [Options.Fold].
//
// Costs are in keys: the time in which a block walks one key of a KV head. With M items at a
// time, of W keys in n items of which the heaviest has h, the step takes
//
//	max(h, ceil(n / M) (W / n), W / M + h / e)
//
// for its keys, by the heaviest item alone, by rounds of even items or by an even share
// with what the end of the heaviest leaves idle. And what foldCosts says for each row of each
// item, the partial results that are written and read again, of which a block has its share, of a
// cluster's each that of its rows; for
// rows that merge puts together; and for its launch.
func (b *Builder) partsPerItem(o *Options) int32 {
	atOnce, c := o.atOnce(), o.foldCosts()
	all := 0
	for i := range b.tiles {
		all += int(b.tiles[i].keys)
	}
	levels := b.sumLevels(o)
	key := fractions * atOnce
	best, least := int32(1), 0
	for level, s := range levels {
		most, rounds := int(s.heaviest), (s.items+atOnce-1)/atOnce
		walk := max(key*most, fractions*all+c.idle*atOnce*most)
		cost := max(walk, rounds*(key*all/max(1, s.items))) + fractions*(c.row*s.rows+c.merged*s.merged)/max(1, o.Cluster)
		if s.merged > 0 {
			cost += c.launch * key
		}
		if level == 0 || cost < least {
			best, least = 1<<level, cost
		}
		if least <= walk { // more parts make the heaviest item no lighter
			break
		}
	}
	return best
}

// level is what is known of a tile whose items have 2^level parts: the keys of the heaviest but
// the last, and those of all but the last. The last alone grows from step to step.
type level struct{ heaviest, before int32 }

// listLevels lists the levels at which the tile that was just listed has several items.
func (m *tileMaker) listLevels() {
	m.levels = m.levels[:0]
	for perItem := 1; perItem < len(m.parts); perItem *= 2 {
		l := level{}
		for end := perItem; end < len(m.parts); end += perItem {
			keys := m.parts[end-1].keys
			l.heaviest = max(l.heaviest, keys-l.before)
			l.before = keys
		}
		m.levels = append(m.levels, l)
	}
}

// levelSum is of all tiles, at a level.
type levelSum struct {
	items, rows int
	merged      int   // rows of tiles of several items
	heaviest    int32 // keys of an item
}

// add takes in a tile of so many items and rows.
func (s *levelSum) add(items, rows int, heaviest int32) {
	s.items += items
	s.rows += items * rows
	s.heaviest = max(s.heaviest, heaviest)
	if items > 1 {
		s.merged += rows
	}
}

// merge takes in the tiles of another sum.
func (s *levelSum) merge(other *levelSum) {
	s.items, s.rows, s.merged = s.items+other.items, s.rows+other.rows, s.merged+other.merged
	s.heaviest = max(s.heaviest, other.heaviest)
}

// mostLevels is more than the levels of any number of parts.
const mostLevels = 32

// sumLevels returns the sums of the levels, up to that at which all items have all the parts that
// they can.
func (b *Builder) sumLevels(o *Options) []levelSum {
	var settled [mostLevels]levelSum // of tiles whose items are the same from this level on
	sums, levels, top := &b.sums, b.levels.all, 0
	*sums = settled
	for i := range b.tiles {
		t := &b.tiles[i]
		of := levels[:foldLevels(t.parts)]
		levels = levels[len(of):]
		rows := min(o.Rows, int(t.count)*o.Group)
		if t.parts > 1 && !t.folds() {
			settled[0].add(int(t.parts), rows, max(of[0].heaviest, t.keys-of[0].before))
			continue
		}
		for at := range of {
			sums[at].add(int(t.parts-1)>>at+1, rows, max(of[at].heaviest, t.keys-of[at].before))
		}
		settled[len(of)].add(1, rows, t.keys)
		top = max(top, len(of))
	}
	var below levelSum
	for i := range sums[:top+1] {
		below.merge(&settled[i])
		sums[i].merge(&below)
	}
	return sums[:top+1]
}

// folds says whether items may have several of the tile's parts. The partial results of
// shared decode come before those of the parts, so that these are no whole groups of all.
func (t *tile) folds() bool { return t.parts > 1 && t.shared == 0 }

// fold puts the parts of the tiles into items of perItem, and returns the slots that the
// kernel folds them by: see [abi.Item].
func (b *Builder) fold(perItem int32) (scratch int) {
	full := b.scratchLevels(perItem)
	for i := range b.tiles {
		t := &b.tiles[i]
		if !t.folds() {
			continue
		}
		t.perItem = perItem
		items := t.items()
		levels := int(items-1)*full + b.scratchLevels(t.parts-(items-1)*perItem)
		scratch += int(t.count) * levels
		if items == 1 {
			items = 0 // which writes its output itself
		}
		b.addSlots(t.begin, t.count, items)
	}
	return scratch
}

// scratchLevels is the slots of each query token that an item of so many parts has to fold by.
func (b *Builder) scratchLevels(parts int32) int {
	if b.options.Whole {
		return 0
	}
	return foldLevels(parts)
}

// foldLevels is the results that wait for others while so many parts are folded: the
// logarithm of parts, rounded up.
func foldLevels(parts int32) int { return bits.Len32(uint32(parts - 1)) }
