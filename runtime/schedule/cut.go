package schedule

import (
	"fmt"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
)

// The costs of the model: see [SharedBuilder].
const (
	itemKeys   = 96   // 1.5 us of a multiprocessor's share of an H200's bandwidth, at head dim 128
	launchKeys = 1536 // 24 us: 64 sequences of which few shared had 21 us fewer bytes and took 9 us longer (H200)
	maxWaves   = 4

	// Cuts that depend on a chunk alone are this many tiles of keys apart, or a
	// multiple of it.
	bitwiseTiles = 4
)

// bundle is chunks that the same sequences hold one behind the other. Its keys are
// theirs, one behind the other.
type bundle struct {
	first, chunks int32 // numbers
	queries       int32 // query tokens that hold it
	tiles         int32 // that those fill
	parts         int32 // it is cut into so many
	unit          int   // at every multiple of this, from there on to the start of a page
	tokens        int   // of all chunks
	ragged        bool  // a chunk but the last ends inside a page
	members       int32 // place of the first
	walked        int64 // keys that decode would walk
}

// bundle lists the bundles to be shared.
func (b *SharedBuilder) bundle(o *Options, s *SharedOptions) {
	b.bundles = b.bundles[:0]
	perTile, page := int32(s.Rows/o.Group), int32(max(1, o.PageSize))
	for i := 0; i < len(b.chunks); {
		c := &b.chunks[i]
		if i++; c.holds == 0 || c.holds == 1 && !s.Bitwise {
			continue
		}
		u := bundle{first: int32(i - 1), chunks: 1, queries: c.queries, tokens: int(c.tokens), walked: b.walked(i-1, o)}
		for ; !s.Bitwise && i < len(b.chunks); i++ {
			// As many holds, each behind another of the chunk before: the same sequences.
			next := &b.chunks[i]
			if next.stray != 0 || next.holds != c.holds {
				break
			}
			u.ragged = u.ragged || b.chunks[i-1].tokens&(page-1) != 0
			u.chunks, u.tokens, u.walked = u.chunks+1, u.tokens+int(next.tokens), u.walked+b.walked(i, o)
		}
		if u.tiles = 1; u.queries > perTile {
			u.tiles = (u.queries-1)/perTile + 1
		}
		if s.Bitwise || u.gain(o) > 0 {
			b.bundles = append(b.bundles, u)
		}
	}
}

// gain is the keys that sharing saves.
func (u *bundle) gain(o *Options) int64 {
	return u.walked - int64(u.tiles)*int64(u.tokens+itemKeys) - int64(u.queries)*int64(o.Group)
}

// cut cuts the bundles and returns the tokens that need not be read. It leaves no
// bundle where sharing them does not pay.
func (b *SharedBuilder) cut(o *Options, s *SharedOptions) (saved int, err error) {
	if len(b.bundles) == 0 {
		return 0, nil
	}
	gain := int64(0)
	for i := range b.bundles {
		gain += b.bundles[i].gain(o)
	}
	if !s.Bitwise && gain*int64(s.KVHeads) < launchKeys*int64(s.Blocks) {
		b.bundles = b.bundles[:0]
		return 0, nil
	}
	if s.Bitwise {
		err = b.cutAlone(o, s)
	} else if !b.cutFastest(o, s) {
		b.bundles = b.bundles[:0]
	}
	for i := range b.bundles {
		u := &b.bundles[i]
		saved += int(u.walked) - u.tokens
	}
	return max(0, saved), err
}

// alignment is what the distance of cuts is a multiple of: whole tiles and pages.
func (s *SharedOptions) alignment(pageSize int) int {
	pageSize = max(1, pageSize)
	return (s.Keys + pageSize - 1) / pageSize * pageSize
}

// BitwiseCut is the least distance of cuts with Bitwise, in tokens.
func (s *SharedOptions) BitwiseCut(pageSize int) int { return bitwiseTiles * s.alignment(pageSize) }

// cutAlone cuts each chunk by its length alone, as [Options.FillBy] would for a
// sequence of one tile.
func (b *SharedBuilder) cutAlone(o *Options, s *SharedOptions) error {
	least, most := s.BitwiseCut(o.PageSize), max(1, s.Blocks/s.KVHeads)
	for i := range b.bundles {
		u := &b.bundles[i]
		share := ceil(u.tokens, most)
		b.cutAt(u, (share+least-1)/least*least, o)
	}
	if items, members := b.total(); !s.fits(items, members) {
		return fmt.Errorf("%w: shared decode has %d work items of %d members in all, there is room for %d and %d",
			ErrFixedSize, items, members, s.PadItems, s.mostMembers())
	}
	return nil
}

// cutFastest cuts the bundles for the least time; false where there is no room
// for their items.
func (b *SharedBuilder) cutFastest(o *Options, s *SharedOptions) bool {
	longest := 0
	for i := range b.bundles {
		longest = max(longest, b.bundles[i].tokens)
	}
	align := s.alignment(o.PageSize)
	longest = (longest + align - 1) / align * align
	for unit := b.unit(o, s, align, longest); ; unit = min(2*unit, longest) {
		for i := range b.bundles {
			b.cutEvenly(&b.bundles[i], unit, align, o)
		}
		if s.fits(b.total()) {
			return true
		}
		if unit == longest {
			return false
		}
	}
}

// unit is the most keys of an item: a multiple of align up to longest.
func (b *SharedBuilder) unit(o *Options, s *SharedOptions, align, longest int) int {
	tiles := int64(0)
	for i := range b.bundles {
		tiles += int64(b.bundles[i].tiles)
	}
	best, least := 0, int64(0)
	for wave := 1; wave <= maxWaves; wave++ {
		most := int64(max(1, wave*s.Blocks/s.KVHeads))
		if tiles > most { // a part each, at least
			continue
		}
		low, high := 1, longest/align // in multiples of align
		for low < high {
			middle := (low + high) / 2
			if n, _ := b.countAt(middle * align); n <= most {
				high = middle
			} else {
				low = middle + 1
			}
		}
		_, members := b.countAt(low * align)
		cost := int64(wave)*int64(low*align+itemKeys) + members*int64(o.Group)*int64(s.KVHeads)/int64(s.Blocks)
		if best == 0 || cost < least {
			best, least = low*align, cost
		}
	}
	if best > 0 {
		return best
	}
	keys := 0
	for i := range b.bundles {
		keys += int(b.bundles[i].tiles) * b.bundles[i].tokens
	}
	quarter := keys * s.KVHeads / s.Blocks / 4
	return min(longest, max(1, quarter/align)*align)
}

// countAt is the items and the members of items of so many keys at most.
func (b *SharedBuilder) countAt(unit int) (items, members int64) {
	for i := range b.bundles {
		u := &b.bundles[i]
		parts := int64(ceil(u.tokens, unit))
		items += parts * int64(u.tiles)
		members += parts * int64(u.queries)
	}
	return items, members
}

// total is the items and the members that the bundles are cut into.
func (b *SharedBuilder) total() (items, members int64) {
	for i := range b.bundles {
		u := &b.bundles[i]
		items += int64(u.parts) * int64(u.tiles)
		members += int64(u.parts) * int64(u.queries)
	}
	return items, members
}

func (s *SharedOptions) fits(items, members int64) bool {
	return (s.PadItems == 0 || items <= int64(s.PadItems)) && members <= s.mostMembers()
}

// mostMembers is MaxMembers, or as many as there are numbers for.
func (s *SharedOptions) mostMembers() int64 {
	if s.MaxMembers == 0 {
		return math.MaxInt32
	}
	return int64(s.MaxMembers)
}

// cutEvenly cuts a bundle into parts of about the same size, none of more than unit keys.
func (b *SharedBuilder) cutEvenly(u *bundle, unit, align int, o *Options) {
	if u.tokens <= unit {
		u.unit, u.parts = unit, 1
		return
	}
	parts := ceil(u.tokens, unit)
	b.cutAt(u, (ceil(u.tokens, parts)+align-1)/align*align, o)
}

// cutAt cuts a bundle at every multiple of unit.
func (b *SharedBuilder) cutAt(u *bundle, unit int, o *Options) {
	u.unit, u.parts = unit, 1
	switch {
	case u.ragged: // the rest of a page may take a part's place
		u.parts = 0
		for w := b.walk(u, o); w.part(nil) > 0; {
			u.parts++
		}
	case u.tokens > unit:
		u.parts = int32(ceil(u.tokens, unit))
	}
}

// walk goes through the parts of a bundle.
type walk struct {
	chunks    []chunk
	page      int
	unit, cut int   // the distance of the cuts, and one of them counted from the start of the first chunk that is left
	begin     int   // token of that chunk that comes next
	once      int32 // 1: one tile has all query tokens that hold the bundle
}

func (b *SharedBuilder) walk(u *bundle, o *Options) walk {
	w := walk{chunks: b.chunks[u.first : u.first+u.chunks], page: max(1, o.PageSize), unit: u.unit}
	if u.tiles == 1 {
		w.once = 1
	}
	return w
}

// part writes the next part's runs, for the first tile, unless runs is nil, and returns
// how many it has; 0 behind the last part.
func (w *walk) part(runs []abi.Run) (n int) {
	w.cut += w.unit
	for len(w.chunks) > 0 && w.begin < w.cut {
		c := &w.chunks[0]
		// A page goes with its first token.
		end := min(int(c.tokens), (w.cut+w.page-1)&^(w.page-1))
		if runs != nil {
			r := &runs[n]
			r.Page, r.Begin, r.End, r.Offset, r.Causal, r.Once = c.page, int32(w.begin), int32(end), c.offsets, abi.Visible, w.once
		}
		n++
		w.begin = end
		if end == int(c.tokens) {
			w.chunks = w.chunks[1:]
			w.begin = 0
			w.cut -= end
		}
	}
	return n
}
