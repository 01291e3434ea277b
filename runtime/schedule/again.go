package schedule

// A decode step is mostly the step before with a token more for each sequence. Who holds
// which chunks, and so what is shared and how it is cut, is then as it was.

// before is a step's sequences, as far as chunks depend on them.
type before struct {
	known     bool // the step was listed
	options   Options
	shared    SharedOptions
	sequences []held
	offsets   []int32 // [segments of all sequences]
	slotBegin []int32
	saved     int
}

// held is a sequence but for its segments, of which it has so many.
type held struct {
	query             int32
	queries, segments int
}

// remember keeps what [SharedBuilder.again] compares.
func (b *SharedBuilder) remember(sequences []Sequence, o *Options, s *SharedOptions) {
	w := &b.before
	w.options, w.shared = *o, *s
	w.sequences, w.offsets = resize(w.sequences, len(sequences)), resize(w.offsets, len(b.numbers))
	offsets := w.offsets
	for i := range sequences {
		q := &sequences[i]
		w.sequences[i] = held{q.QueryBegin, len(q.Positions), len(q.Segments)}
		for j := range q.Segments {
			offsets[j] = q.Segments[j].Offset
		}
		offsets = offsets[len(q.Segments):]
	}
}

// again is whether the step before had the same sequences, but for their own tokens, where
// their query tokens stand, and which pages the table has at which place. Then what [SharedBuilder.invert] found
// holds, with the chunks' new pages. moved says that these are others. A step that is wrong is not the same.
//
// Pages must be new in ascending order, as those of a table that is made for the step are: then
// chunks that have the same page are the same.
func (b *SharedBuilder) again(sequences []Sequence, o *Options, s *SharedOptions) (same, moved bool) {
	w := &b.before
	// With a window, what is seen of a chunk depends on where the query tokens stand.
	if !w.known || o.Window > 0 || *o != w.options || *s != w.shared || len(sequences) != len(w.sequences) {
		return false, false
	}
	numbers, offsets, chunks := b.numbers, w.offsets, b.chunks
	met, next, once := int32(0), int32(0), 0 // chunks, the page behind theirs, and tokens, each counted once
	for i := range sequences {
		q := &sequences[i]
		if (held{q.QueryBegin, len(q.Positions), len(q.Segments)}) != w.sequences[i] || q.checkPositions(o) != nil {
			return false, false
		}
		total, owned := 0, false
		numbered, placed := numbers[:len(q.Segments)], offsets[:len(q.Segments)]
		numbers, offsets = numbers[len(q.Segments):], offsets[len(q.Segments):]
		for j := range q.Segments {
			g := &q.Segments[j]
			n := numbered[j]
			total += int(g.Tokens)
			if n < 0 {
				if !g.Own || g.Page < next || g.Page >= knownPages || q.checkSegment(j, o, owned) != nil {
					return false, false
				}
				owned = true
				next = g.Page + 1
				once += int(g.Tokens)
				continue
			}
			c := &chunks[n]
			if n == met {
				if g.Page < next || g.Page >= knownPages {
					return false, false
				}
				met++
				next = g.Page + 1
				once += int(c.tokens)
				moved = moved || c.page != g.Page
				c.page = g.Page
			}
			if g.Page != c.page || g.Tokens != c.tokens || g.Offset != placed[j] || g.Own {
				return false, false
			}
		}
		if checkTotal(total) != nil {
			return false, false
		}
		b.known[i].total = total
	}
	b.decode.readers.know(chunks, next, once, o.OnceTokens)
	return true, moved
}

// divideAgain is divide where the step before had the same chunks.
func (b *SharedBuilder) divideAgain(sequences []Sequence) []Sequence {
	from := b.from
	for i := range sequences {
		q, left := &sequences[i], &b.left[i]
		left.Positions = q.Positions
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
