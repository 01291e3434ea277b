package schedule

import "math/bits"

// Items of several parts, whose results their kernel folds.

// productRows is the rows of a tile from which on its products take longer than its keys.
const productRows = 64

// partsPerItem is how many parts an item of this step has: see [Options.Fold].
//
// Costs are in keys: the time in which a block walks one key of a KV head. With M blocks,
// of W keys in n items of which the heaviest has h, the step takes
//
//	max(h, ceil(n / M) (W / n), W / M + h / e)
//
// for its keys, by the heaviest item alone, by rounds of even items or by an even share
// with what the end of the heaviest leaves idle; e is 8, or with tiles of few rows 64:
// these wait for memory, and blocks that have ended leave their share of it to the others
// (H200: decode of 32 sequences of 8192 tokens takes 260 us by 16 parts an item, by 2 parts
// 266, by one 269). And each item 2 for each of its rows, the
// partial results that are written and read again, of which a block has its share. Rows
// that merge puts together cost 6 more, and its launch 128. (H200, extend of 64 tokens: 14
// and 33 us less where 8 and 16 sequences need no merge, at 19 ns a key.)
func (b *Builder) partsPerItem(o *Options) int32 {
	if o.PartsPerItem > 0 {
		return int32(o.PartsPerItem)
	}
	atOnce := o.AtOnce
	if atOnce == 0 {
		atOnce = o.MaxItems
	}
	if atOnce == 0 {
		return 1 // nobody says how many blocks there are
	}
	b.keys = resize(b.keys, len(b.parts))
	all := 0
	for i, p := range b.parts {
		b.keys[i] = p.keys
		all += int(p.keys)
	}
	blocks, idle := float64(atOnce), 1./8
	if o.Rows < productRows {
		idle = 1. / 64
	}
	best, least := int32(1), 0.0
	for level := 0; ; level++ {
		items, heaviest, rows, merged, last := b.joinPairs(o, level)
		rounds := float64((items + atOnce - 1) / atOnce)
		most := float64(heaviest)
		walk := max(most, float64(all)/blocks+idle*most)
		cost := max(walk, rounds*float64(all)/float64(max(1, items))) + float64(2*rows+6*merged)/blocks
		if merged > 0 {
			cost += 128
		}
		if level == 0 || cost < least {
			best, least = 1<<level, cost
		}
		if last || least <= walk { // more parts make the heaviest item no lighter
			return best
		}
	}
}

// joinPairs goes on to items of 2^level parts. b.keys has the keys of those of half as
// many, in the places of the first parts of each tile; at level 0 there is nothing to join.
// It returns how many items there are, the keys of the heaviest, the rows of all, those of
// tiles of several, and whether all have all that they can.
func (b *Builder) joinPairs(o *Options, level int) (items int, heaviest int32, rows, merged int, last bool) {
	first := int32(0)
	last = true
	for i := range b.tiles {
		t := &b.tiles[i]
		keys, left := b.keys[first:first+t.parts], t.parts
		first += t.parts
		if t.folds() && level > 0 {
			before := (t.parts + 1<<(level-1) - 1) >> (level - 1)
			left = (before + 1) / 2
			for j := range before / 2 {
				keys[j] = keys[2*j] + keys[2*j+1]
			}
			if before%2 != 0 {
				keys[left-1] = keys[before-1]
			}
		}
		for _, k := range keys[:left] {
			heaviest = max(heaviest, k)
		}
		last = last && (left == 1 || !t.folds())
		items += int(left)
		of := min(o.Rows, int(t.count)*o.Group)
		rows += int(left) * of
		if left > 1 {
			merged += of
		}
	}
	return items, heaviest, rows, merged, last
}

// folds says whether items may have several of the tile's parts. The partial results of
// shared decode come before those of the parts, so that these are no whole groups of all.
func (t *tile) folds() bool { return t.parts > 1 && t.shared == 0 }

// fold puts the parts of the tiles into items of perItem, and returns the slots that the
// kernel folds them by: see [abi.Item].
func (b *Builder) fold(perItem int32) (scratch int) {
	at, from := int32(0), int32(0)
	for i := range b.tiles {
		t := &b.tiles[i]
		parts := b.parts[from : from+t.parts]
		from += t.parts
		if !t.folds() {
			at += int32(copy(b.parts[at:], parts))
			continue
		}
		t.items = 0
		for begin := int32(0); begin < t.parts; begin += perItem {
			of := parts[begin:min(begin+perItem, t.parts)]
			item := part{end: of[len(of)-1].end}
			for _, p := range of {
				item.keys += p.keys
			}
			b.parts[at] = item
			at++
			t.items++
			scratch += int(t.count) * foldLevels(int32(len(of)))
		}
		if t.items == 1 {
			b.addSlots(t.begin, t.count, 0)
		} else {
			b.addSlots(t.begin, t.count, t.items)
		}
	}
	b.parts = b.parts[:at]
	return scratch
}

// foldLevels is the results that wait for others while so many parts are folded: the
// logarithm of parts, rounded up.
func foldLevels(parts int32) int { return bits.Len32(uint32(parts - 1)) }
