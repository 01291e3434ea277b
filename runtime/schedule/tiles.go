package schedule

import (
	"math"
	"math/bits"
	"slices"

	"github.com/kgen-project/kgen/runtime/abi"
)

// tile is some query tokens of one sequence.
type tile struct {
	begin, count, index int32 // as QBegin, QCount and QIndex of its items
	block               int32 // query tokens of the sequence
	lowest              int32 // smallest position of its query tokens, where there is a window
	parts               int32 // its keys are cut into so many
	perItem             int32 // parts of an item; of the last, what is left
	shared              int32 // partial slots of each query token before those of the parts
	unit                int   // distance of the cuts
	keys                int32 // of its parts
}

// items is how many the tile's parts are in.
func (t *tile) items() int32 {
	if t.perItem == 1 {
		return t.parts
	}
	return (t.parts + t.perItem - 1) / t.perItem
}

// part is one of a tile.
type part struct {
	end  int32 // of its runs, counted from the tile's first; they begin where those of the part before end
	keys int32 // of the tile's runs up to there; of the last part, as when it was listed: see tile.keys
}

// read is what a tile reads of a segment.
type read struct {
	page int32 // index in the page table, or ownPage
	runs int32
}

// ownPage is that of own tokens, which may be another in each step.
const ownPage = -1

// tileMaker is the memory in which a tile is listed.
type tileMaker struct {
	runs   []abi.Run
	parts  []part
	reads  []read
	levels []level
}

// add lists a sequence anew.
func (b *Builder) add(s *Sequence, of *known, o *Options) {
	n, total, shared := int32(len(s.Positions)), of.total, of.shared
	if shared > 0 && len(s.Segments) == 0 {
		b.addSlots(s.QueryBegin, n, shared)
		b.listed.add(1)[0] = listed{}
		return
	}
	perTile, tiles := n, 1
	if most := int32(o.Rows / o.Group); n > most {
		perTile, tiles = most, int((n-1)/most)+1
	}
	l := listed{tiles: int32(tiles), queries: n, unit: o.splitTokens(total, tiles)}
	m := &b.maker
	_, near := o.cutPlaces()
	m.makeRoom(len(s.Segments), total+near, l.unit)
	for i := int32(0); i < n; i += perTile {
		t := b.addTile()
		t.begin, t.count, t.index, t.block = s.QueryBegin+i, min(perTile, n-i), i, n
		t.lowest, t.perItem, t.shared, t.unit = 0, 1, shared, l.unit
		if o.Window > 0 {
			t.lowest = slices.Min(s.Positions[i : i+t.count])
			seen := t.seen(s.Segments, o)
			t.unit = o.splitTokens(seen, tiles)
			m.makeRoom(len(s.Segments), seen+near, t.unit)
		}
		cut := m.list(t, s.Segments, o)
		copy(b.runs.add(len(m.runs)), m.runs)
		copy(b.parts.add(len(m.parts)), m.parts)
		copy(b.reads.add(len(m.reads)), m.reads)
		if o.choosesParts() {
			m.listLevels()
			copy(b.levels.add(len(m.levels)), m.levels)
			l.levels += int32(len(m.levels))
		}
		b.addTileSlots(t)
		l.runs, l.parts, l.reads = l.runs+int32(len(m.runs)), l.parts+int32(len(m.parts)), l.reads+int32(len(m.reads))
		l.remember(s, total, cut, m.runs, o)
	}
	b.listed.add(1)[0] = l
	for i := range s.Segments {
		if s.Segments[i].Own {
			b.own += int(s.Segments[i].Tokens)
		}
	}
}

// addTile appends a tile whose fields are to be set: each by itself, as the copy of a struct
// just made would wait for its stores.
func (b *Builder) addTile() *tile {
	n := len(b.tiles)
	b.tiles = resize(b.tiles, n+1)
	return &b.tiles[n]
}

// addTileSlots gives a tile's query tokens their slots.
func (b *Builder) addTileSlots(t *tile) {
	if n := t.parts + t.shared; n > 1 {
		b.addSlots(t.begin, t.count, n)
	}
}

// addSlots gives each of count query tokens n slots.
func (b *Builder) addSlots(begin, count, n int32) {
	for token := begin; token < begin+count; token++ {
		b.slotBegin[token+1] = n
	}
}

// makeRoom makes room for a tile that sees so many tokens of so many segments, cut at every
// multiple of unit.
func (m *tileMaker) makeRoom(segments, total, unit int) {
	// A cut or the gap of a window makes one run more.
	most := 2*segments + 2
	if total >= unit {
		most += total / unit
	}
	m.runs, m.parts, m.reads = resize(m.runs, most), resize(m.parts, most), resize(m.reads, segments)
}

// list lists the runs and the parts of a tile; there is room for them. cut is where the next
// part would begin, counted from the start of the last segment. This is the inner loop of a
// step, so its state is in local variables.
func (m *tileMaker) list(t *tile, segments []Segment, o *Options) (cut int) {
	runs, n := m.runs[:cap(m.runs)], 0
	parts, p := m.parts[:cap(m.parts)], 0
	keys, before := 0, 0 // of the tile's runs so far, and of those before the part
	mask, near := o.cutPlaces()
	ends := int32(1) // EndsPart of the last run of a part
	if o.Whole {
		ends = 0
	}
	unit := t.unit
	next := unit - near // the cut that comes next, counted from the start of the segment
	for i := range segments {
		segment := &segments[i]
		end, causal := t.reach(segment, o)
		first := n
		begin, stop, resume := 0, end, end // what the tile sees is begin to stop and resume to end
		if o.Window > 0 {
			stop, resume = o.gap(segment, t.lowest, end)
		}
		for {
			for begin < stop {
				if begin >= next {
					if keys > before {
						parts[p] = part{int32(n), int32(keys)}
						runs[n-1].EndsPart = ends
						p++
						before = keys
					}
					for next <= begin {
						next += unit
					}
				}
				// Up to the first place at or behind the cut where one may be, and on from there
				// to the one after the next cut. Nobody can foretell whether a cut is in a
				// segment, so its part and the second run are written in any case, and
				// counted by inside, which is 1 or 0. Field by field: the copy of a struct
				// just made would wait for its stores.
				middle := min(stop, (next+mask)&^mask)
				last, inside := middle, 0
				if unit > mask { // else the next cut may be at that place too
					last = min(stop, (next+unit+mask)&^mask)
					inside = int(uint(middle-stop) >> (bits.UintSize - 1))
				}
				r := runs[n : n+2]
				r[0].Page, r[0].Begin, r[0].End, r[0].Offset = segment.Page, int32(begin), int32(middle), segment.Offset
				r[0].Causal, r[0].Once, r[0].EndsPart = causal, 0, int32(inside)&ends
				r[1].Page, r[1].Begin, r[1].End, r[1].Offset = segment.Page, int32(middle), int32(last), segment.Offset
				r[1].Causal, r[1].Once, r[1].EndsPart = causal, 0, 0
				keys += middle - begin
				parts[p] = part{int32(n + 1), int32(keys)}
				p += inside
				n += 1 + inside
				before += (keys - before) & -inside
				keys += last - middle
				next += unit & -inside
				begin = last
			}
			if stop == end {
				break
			}
			next += countFrom(resume, end, mask) - stop // the gap does not count
			begin, stop = resume, end
		}
		m.reads[i] = read{runs: int32(n - first)} // its page comes with Once
		cut = next
		next -= int(segment.Tokens)
	}
	parts[p] = part{int32(n), int32(keys)}
	if keys > before {
		runs[n-1].EndsPart = ends
	}
	t.parts, t.keys = int32(p+1), int32(keys)
	m.runs, m.parts = runs[:n], parts[:p+1]
	return cut
}

// reach is how far a tile sees into a segment but for a window, and the Causal of the run.
func (t *tile) reach(s *Segment, o *Options) (end int, causal int32) {
	if s.Own && o.Causal {
		causal = s.Tokens - t.block
		return min(int(s.Tokens), int(t.index+t.count+causal)), causal
	}
	return int(s.Tokens), abi.Visible
}

// seen is how many tokens a tile sees where there is a window, from where a cut might be in the
// segment in which the window begins.
func (t *tile) seen(segments []Segment, o *Options) (tokens int) {
	mask, _ := o.cutPlaces()
	for i := range segments {
		end, _ := t.reach(&segments[i], o)
		stop, resume := o.gap(&segments[i], t.lowest, end)
		tokens += stop + end - countFrom(resume, end, mask)
	}
	return tokens
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

// countFrom is the token behind a gap, of those before end, from which cuts are counted on: where one may be.
func countFrom(resume, end, mask int) int {
	if resume < end {
		resume &^= mask
	}
	return resume
}

// cutPlaces says where in a segment a cut may be: where the bits of mask are 0. It is at the first such
// place that is not more than near tokens ahead of it.
func (o *Options) cutPlaces() (mask, near int) {
	mask = max(1, o.PageSize, o.Keys) - 1
	if o.Keys > 0 {
		near = (mask + 1) / 2
	}
	return mask, near
}

// splitTokens is the distance of the cuts of a tile that sees so many tokens, of a sequence
// whose query tokens fill so many tiles.
func (o *Options) splitTokens(total, tiles int) int {
	if o.SplitTokens == 0 {
		return math.MaxInt32
	}
	if o.MaxItems == 0 {
		return o.SplitTokens
	}
	most := o.MaxItems
	if tiles > 1 { // of a step's hundreds of sequences most are one tile, and short
		most = max(1, most/tiles)
	}
	if o.Keys > 0 {
		// No cut is as near to the end as it may be from its place.
		_, near := o.cutPlaces()
		return min(ceil(max(1, total)+near, o.evenParts(total, tiles, most)), math.MaxInt32)
	}
	return min(o.SplitTokens*max(1, ceil(total, o.SplitTokens*most)), math.MaxInt32)
}

// evenParts is how many parts of about the same size such a tile is cut into, at most so many.
func (o *Options) evenParts(total, tiles, most int) int {
	parts := total / o.SplitTokens
	if !o.Whole {
		parts = min(parts, max(foldedBlocks/(tiles*max(1, o.Cluster)), parts/2))
	}
	return max(1, min(parts, most))
}

func ceil(a, b int) int { return (a + b - 1) / b }
