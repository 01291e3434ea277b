package schedule

import "github.com/kgen-project/kgen/runtime/abi"

// A decode step is mostly the step before with a token more for each sequence. What its
// sequences hold is then listed as it was, and of their own tokens there is a token more in
// the last run.

// kept is what a builder keeps from step to step. Each list has what belongs to the sequences
// in their order.
type kept struct {
	known   bool // the lists are those of a step
	options Options
	listed  rolling[listed]
	runs    rolling[abi.Run]
	parts   rolling[part]  // of the tiles, one tile's behind the other's
	reads   rolling[read]  // likewise
	levels  rolling[level] // likewise, where these are chosen by

	changed bool // the step has other sequences than the one before, or other pages of what they hold
	own     int  // own tokens of all sequences of the step
}

// listed is a sequence that was listed.
type listed struct {
	tiles                      int32
	runs, parts, reads, levels int32 // of its tiles: so many of each list

	// Of one whose own tokens alone may be listed again; else layout is 0.
	layout            uint64
	queries, segments int32
	unit              int // distance of the cuts
	before            int // tokens of what it holds
	// With more than least own tokens, and at most so many, there are as many runs and parts.
	least, most int
}

// remember says what is to be known of a sequence of one tile, which was just listed with these
// runs. cut is where its next part would begin, in the last segment.
func (l *listed) remember(s *Sequence, total, cut int, runs []abi.Run, o *Options) {
	last := len(s.Segments) - 1
	// With a window, what is seen of a chunk depends on where the query tokens stand.
	if s.Layout == 0 || l.tiles != 1 || o.Window > 0 || last < 0 || !s.Segments[last].Own || s.Segments[last].Tokens == 0 {
		return
	}
	mask := max(1, o.PageSize) - 1
	l.layout, l.queries, l.segments = s.Layout, int32(len(s.Positions)), int32(len(s.Segments))
	l.before = total - int(s.Segments[last].Tokens)
	l.least, l.most = int(runs[len(runs)-1].Begin), (cut+mask)&^mask
}

// begin starts a step.
func (k *kept) begin(o *Options) {
	k.changed = !k.known || k.options != *o
	k.known, k.options, k.own = false, *o, 0
	k.listed.begin(k.changed)
	k.runs.begin(k.changed)
	k.parts.begin(k.changed)
	k.reads.begin(k.changed)
	k.levels.begin(k.changed)
}

// end ends the listing of a step.
func (k *kept) end() {
	k.changed = k.changed || k.listed.left() > 0
	k.listed.end()
	k.runs.end()
	k.parts.end()
	k.reads.end()
	k.levels.end()
}

// drop leaves out the next sequence of the step before.
func (k *kept) drop() {
	l := k.listed.next()
	k.runs.drop(int(l.runs))
	k.parts.drop(int(l.parts))
	k.reads.drop(int(l.reads))
	k.levels.drop(int(l.levels))
	k.listed.drop(1)
}

// ahead is how many sequences may have left, one behind the other, for those behind them to be
// kept.
const ahead = 8

// find is whether the step before had the first of the sequences; it is then its next one.
func (k *kept) find(sequences []Sequence) bool {
	s := &sequences[0]
	for i := range min(ahead, k.listed.left()) {
		l := &k.listed.all[k.listed.rest+i]
		if l.layout != s.Layout || l.layout == 0 || int(l.queries) != len(s.Positions) || int(l.segments) != len(s.Segments) {
			continue
		}
		for range i {
			k.drop()
			k.changed = true
		}
		return true
	}
	k.changed = true
	// Where one has left and another has joined, this mostly stands in its place.
	if k.listed.left() > 0 && (len(sequences) == 1 || k.listed.next().layout != sequences[1].Layout) {
		k.drop()
	}
	return false
}

// keep lists a sequence that the step before had, but for its own tokens as it was. It returns
// false where it must be listed anew.
func (b *Builder) keep(s *Sequence, of *known, o *Options) bool {
	l := b.listed.next()
	own := &s.Segments[len(s.Segments)-1]
	moved := b.moved(s)
	b.changed = b.changed || moved
	total, tokens := l.before+int(own.Tokens), int(own.Tokens)
	if !own.Own || tokens <= l.least || tokens > l.most || o.splitTokens(total, 1) != l.unit || of == nil && !s.right(total, moved, o) {
		b.drop()
		return false
	}
	t := tile{begin: s.QueryBegin, count: l.queries, block: l.queries, parts: l.parts, perItem: 1, unit: l.unit, keys: int32(total)}
	if of != nil {
		t.shared = of.shared
	}
	b.addTile(&t)
	b.own += tokens
	ownRuns := b.reads.keep(int(l.reads))[l.reads-1].runs
	runs := b.runs.keep(int(l.runs))
	b.parts.keep(int(l.parts))[l.parts-1].keys = int32(total)
	runs[l.runs-1].End = own.Tokens
	for i := l.runs - ownRuns; i < l.runs; i++ {
		r := &runs[i]
		r.Page = own.Page
		if o.Causal {
			r.Causal = own.Tokens - l.queries
		}
	}
	b.levels.keep(int(l.levels))
	b.listed.keep(1)
	return true
}

// moved is whether the pages of what the next sequence of the step before holds are others now.
func (k *kept) moved(s *Sequence) bool {
	last := len(s.Segments) - 1
	was, other := k.reads.all[k.reads.rest:][:last], int32(0)
	for i := range s.Segments[:last] {
		other |= s.Segments[i].Page ^ was[i].page
	}
	return other != 0
}

// right is whether nothing is wrong with a sequence of so many tokens that was right but for
// its own tokens and, where they have moved, the pages.
func (s *Sequence) right(total int, moved bool, o *Options) bool {
	if moved {
		_, err := s.check(o)
		return err == nil
	}
	return s.checkPositions(o) == nil && s.checkSegment(len(s.Segments)-1, o, false) == nil && checkTotal(total) == nil
}

// finish ends a step whose chunks' readers are known: the runs say Once.
func (b *Builder) finish(sequences []Sequence) {
	if b.readers.limit(b.own, b.options.OnceTokens) || b.changed {
		b.mark(sequences)
	}
	b.known = true
}

// mark gives all runs their pages and says Once of them.
func (b *Builder) mark(sequences []Sequence) {
	runs, reads := b.runs.all, b.reads.all
	for i := range sequences {
		s, l := &sequences[i], &b.listed.all[i]
		for range l.tiles {
			runs = runs[b.readers.mark(s.Segments, int(l.tiles), runs, reads):]
			reads = reads[len(s.Segments):]
		}
	}
}
