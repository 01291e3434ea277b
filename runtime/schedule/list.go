package schedule

import "math/bits"

// place gives the lists their sizes, and what is written into them its place: the
// bundles with the heaviest items first, the members of a bundle's parts one part's
// behind the other's, the offsets of its chunks likewise.
func (b *SharedBuilder) place(s *SharedOptions) {
	b.sort()
	items, members, runs, offsets := int32(0), int32(0), int32(0), int32(0)
	for _, i := range b.order {
		u := &b.bundles[i]
		u.members = members
		for j := range u.chunks {
			c := &b.chunks[u.first+j]
			c.next, c.parts, c.offsets, c.members = 0, 0, offsets, members
			offsets += u.queries
		}
		b.chunks[u.first].parts = u.parts
		items += u.tiles * u.parts
		members += u.queries * u.parts
		runs += u.tiles * (u.parts + u.chunks) // at most
	}
	b.items = resize(b.items, max(int(items), s.PadItems))
	clear(b.items[items:])
	b.members, b.runs, b.offsets = resize(b.members, int(members)), resize(b.runs, int(runs)), resize(b.offsets, int(offsets))
}

// listMembers gives the members the slots that begin for each query token at slotBegin.
func (b *SharedBuilder) listMembers(slotBegin []int32) {
	for i := range b.bundles {
		u := &b.bundles[i]
		of := b.members[u.members:]
		for j := range of[:u.queries] {
			m := &of[j]
			m.Slot += slotBegin[m.Token]
		}
		for part := int32(1); part < u.parts; part++ {
			first := part * u.queries
			for j := range u.queries {
				of[first+j].Token, of[first+j].Slot = of[j].Token, of[j].Slot+part
			}
		}
	}
}

// list makes the items of the bundles, and their runs. Items of one part follow one
// another: their tiles walk the same keys at about the same time.
func (b *SharedBuilder) list(o *Options, s *SharedOptions) {
	perTile := int32(s.Rows / o.Group)
	item, run := int32(0), int32(0)
	b.runs = b.runs[:cap(b.runs)]
	for _, i := range b.order {
		u := &b.bundles[i]
		w := b.walk(u, o)
		for part := range u.parts {
			first := part * u.queries
			n := int32(w.part(b.runs[run:]))
			for tile := int32(0); tile < u.queries; tile += perTile {
				if tile > 0 { // the same keys, of other members
					b.moveRuns(run-n, n, perTile)
				}
				x := &b.items[item]
				x.QBegin, x.QCount = u.members+first+tile, min(perTile, u.queries-tile)
				x.RunBegin, x.RunEnd = run, run+n
				run += n
				item++
			}
		}
	}
	b.runs = b.runs[:run]
}

// moveRuns copies n runs to right behind them, with offsets so much further on.
func (b *SharedBuilder) moveRuns(first, n, by int32) {
	runs := b.runs[first+n : first+2*n]
	copy(runs, b.runs[first:first+n])
	for i := range runs {
		runs[i].Offset += by
	}
}

// sort puts the bundles with the heaviest items first, to within an eighth of the
// heaviest at worst: a counting sort.
func (b *SharedBuilder) sort() {
	b.order = resize(b.order, len(b.bundles))
	most := 0
	for i := range b.bundles {
		most = max(most, b.bundles[i].keys())
	}
	shift := bits.Len(uint(most) / sortBuckets)
	clear(b.buckets[:])
	for i := range b.bundles {
		b.buckets[(most-b.bundles[i].keys())>>shift+1]++
	}
	for i := 1; i < len(b.buckets); i++ {
		b.buckets[i] += b.buckets[i-1]
	}
	for i := range b.bundles {
		at := &b.buckets[(most-b.bundles[i].keys())>>shift]
		b.order[*at] = int32(i)
		*at++
	}
}

// keys is the most keys of an item of the bundle.
func (u *bundle) keys() int { return min(u.tokens, u.unit) }
