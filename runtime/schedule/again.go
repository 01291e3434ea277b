package schedule

// A decode step is mostly the step before with a token more for each sequence. Who holds
// which chunks, and so what is shared and how it is cut, is then as it was.

// before is what a step's chunks depend on.
type before struct {
	known     bool // the step was listed, and the next may be compared with it
	options   Options
	shared    SharedOptions
	sequences []held
	saved     int
	slotBegin []int32
}

// held is a sequence but for its own tokens.
type held struct {
	layout            uint64
	query             int32
	queries, segments int
	tokens            int // of its chunks
}

// first is the segment by which a chunk was met.
type first struct{ sequence, segment int32 }

// remember keeps what again compares, and says whether it can.
func (b *SharedBuilder) remember(sequences []Sequence, o *Options, s *SharedOptions) bool {
	// With a window, what is seen of a chunk depends on where the query tokens stand.
	if o.Window > 0 || b.empty {
		return false
	}
	w := &b.before
	w.options, w.shared = *o, *s
	w.sequences = resize(w.sequences, len(sequences))
	for i := range sequences {
		q := &sequences[i]
		own := len(q.Segments) - 1
		if q.Layout == 0 || own < 0 || !q.Segments[own].Own {
			return false
		}
		w.sequences[i] = held{
			layout: q.Layout, query: q.QueryBegin, queries: len(q.Positions), segments: len(q.Segments),
			tokens: b.known[i].total - int(q.Segments[own].Tokens),
		}
	}
	return true
}

// again is whether the step before had the same sequences, but for their own tokens, where
// their query tokens stand and where the table has which pages. What [SharedBuilder.share]
// has found then holds, with the pages that the chunks have now; moved is whether some are
// others. A step that is wrong is never the same.
func (b *SharedBuilder) again(sequences []Sequence, o *Options, s *SharedOptions) (same, moved bool) {
	w := &b.before
	if !w.known || *o != w.options || *s != w.shared || len(sequences) != len(w.sequences) {
		return false, false
	}
	next, met := int32(0), 0 // page behind those of the chunks so far, and how many these are
	for i := range sequences {
		q, was := &sequences[i], &w.sequences[i]
		if q.Layout != was.layout || q.QueryBegin != was.query || len(q.Positions) != was.queries || len(q.Segments) != was.segments {
			return false, false
		}
		for ; met < len(b.first) && int(b.first[met].sequence) == i; met++ {
			g, c := &q.Segments[b.first[met].segment], &b.chunks[met]
			if g.Page < next { // it might be that of another chunk
				return false, false
			}
			next = g.Page + 1
			moved = moved || c.page != g.Page
			c.page = g.Page
		}
		own := &q.Segments[was.segments-1]
		total := was.tokens + int(own.Tokens)
		if !own.Own || !q.right(total, false, o) {
			return false, false
		}
		b.known[i].total = total
	}
	return true, moved
}

// divideAgain is divide where the step before had the same chunks.
func (b *SharedBuilder) divideAgain(sequences []Sequence) []Sequence {
	from := b.from
	for i := range sequences {
		q, left := &sequences[i], &b.left[i]
		left.Positions, left.Layout, left.Placed = q.Positions, q.Layout, q.Placed
		total := 0
		for j := range left.Segments {
			left.Segments[j] = q.Segments[from[j]]
			total += int(left.Segments[j].Tokens)
		}
		b.known[i].total = total
		from = from[len(left.Segments):]
	}
	return b.left
}

// moveMembers puts the members' slots where their query tokens' slots are now.
func (b *SharedBuilder) moveMembers(slotBegin []int32) {
	was := b.before.slotBegin
	for i := range b.members {
		m := &b.members[i]
		m.Slot += slotBegin[m.Token] - was[m.Token]
	}
}
