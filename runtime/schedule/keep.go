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

	readers readers
	counts  bool // readers follows the sequences as they come and go
	own     int  // own tokens of all sequences of the step
	number  uint64
	changed []Span // of runs: see [Lists.Changed]
}

// listed is a sequence that was listed.
type listed struct {
	tiles                      int32
	marked                     bool  // its runs say Once
	stays                      bool  // and stand where they stood in the step before
	runs, parts, reads, levels int32 // of its tiles: so many of each list

	// Of one whose own tokens alone may be listed again; else layout is 0.
	layout, placed    uint64
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
	mask, _ := o.cutPlaces()
	l.layout, l.placed, l.queries, l.segments = s.Layout, s.Placed, int32(len(s.Positions)), int32(len(s.Segments))
	l.before = total - int(s.Segments[last].Tokens)
	l.least, l.most = int(runs[len(runs)-1].Begin), (cut+mask)&^mask
}

// begin starts a step.
func (k *kept) begin(o *Options, counts bool) {
	forget := !k.known || k.options != *o
	k.known, k.options, k.counts, k.own = false, *o, counts && !forget, 0
	k.readers.news = false
	k.listed.begin(forget)
	k.runs.begin(forget)
	k.parts.begin(forget)
	k.reads.begin(forget)
	k.levels.begin(forget)
}

// end ends the listing of a step.
func (k *kept) end() {
	for k.listed.left() > 0 {
		k.leave()
	}
	k.listed.end()
	k.runs.end()
	k.parts.end()
	k.reads.end()
	k.levels.end()
}

// leave leaves out the next sequence of the step before, which this step does not have.
func (k *kept) leave() {
	if l := k.listed.next(); l.tiles > 0 && k.counts {
		k.readers.remove(k.reads.all[k.reads.rest:][:l.reads/l.tiles])
	}
	k.drop()
}

// drop leaves out what the next sequence of the step before was listed as.
func (k *kept) drop() {
	l := k.listed.next()
	k.runs.drop(int(l.runs))
	k.parts.drop(int(l.parts))
	k.reads.drop(int(l.reads))
	k.levels.drop(int(l.levels))
	k.listed.drop(1)
}

// is says whether the sequence is one that holds the same and has as many query tokens.
func (l *listed) is(s *Sequence) bool {
	return l.layout == s.Layout && l.layout != 0 && int(l.queries) == len(s.Positions) &&
		int(l.segments) == len(s.Segments) && s.Segments[l.segments-1].Own
}

// ahead is how many sequences may have left, one behind the other, for those behind them to be
// kept.
const ahead = 8

// find is whether the step before had the first of the sequences; it is then its next one.
func (k *kept) find(sequences []Sequence) bool {
	s := &sequences[0]
	for i := range min(ahead, k.listed.left()) {
		l := &k.listed.all[k.listed.rest+i]
		if !l.is(s) {
			continue
		}
		for range i {
			k.leave()
		}
		return true
	}
	// Where one has left and another has joined, this mostly stands in its place.
	if k.listed.left() > 0 && (len(sequences) == 1 || k.listed.next().layout != sequences[1].Layout) {
		k.leave()
	}
	return false
}

// keep lists a sequence that the step before had, but for its own tokens as it was. It returns
// false where it must be listed anew.
func (b *Builder) keep(s *Sequence, of *known, o *Options) bool {
	l := b.listed.next()
	own := &s.Segments[len(s.Segments)-1]
	moved := l.placed == 0 || l.placed != s.Placed
	if moved {
		moved, l.placed = b.moved(s), s.Placed
	}
	b.counts = b.counts && !moved
	total, tokens := l.before+int(own.Tokens), int(own.Tokens)
	if tokens <= l.least || tokens > l.most || o.splitTokens(total, 1) != l.unit || of == nil && !s.right(total, moved, o) {
		b.drop()
		return false
	}
	t := b.addTile()
	t.begin, t.count, t.index, t.block = s.QueryBegin, l.queries, 0, l.queries
	t.lowest, t.parts, t.perItem, t.unit, t.keys = 0, l.parts, 1, l.unit, int32(total)
	t.shared = 0
	if of != nil {
		t.shared = of.shared
	}
	b.addTileSlots(t)
	b.own += tokens
	ownRuns := b.reads.keep(int(l.reads))[l.reads-1].runs
	l.stays = b.runs.stays()
	runs := b.runs.keep(int(l.runs))
	b.parts.keep(int(l.parts))
	runs[l.runs-1].End = own.Tokens
	once := int32(0)
	if b.readers.one(own) {
		once = 1
	}
	for i := l.runs - ownRuns; i < l.runs; i++ {
		r := &runs[i]
		r.Page, r.Once = own.Page, once
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

// finish ends a step of which readers has the sequences: the runs say Once.
func (b *Builder) finish(sequences []Sequence, lists *Lists) {
	b.readers.limit(b.own, b.options.OnceTokens)
	b.changed = b.changed[:0]
	reads, begin := b.reads.all, int32(0)
	for i := range sequences {
		l := &b.listed.all[i]
		end := begin + l.runs
		if b.readers.news || !l.marked {
			b.readers.mark(sequences[i].Segments, int(l.tiles), b.runs.all[begin:end], reads)
			l.marked = true
		} else if l.stays { // of own tokens alone
			begin = end - reads[l.reads-1].runs
		}
		b.changed = AppendSpan(b.changed, begin, end)
		begin, reads = end, reads[l.reads:]
	}
	b.known = true
	b.number++
	lists.Number, lists.Changed = b.number, b.changed
}
