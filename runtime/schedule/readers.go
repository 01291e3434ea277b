package schedule

// readers counts the segments of a step that begin at a page.
type readers struct {
	at   []reader // by Segment.Page
	step uint32
}

type reader struct {
	step     uint32 // in which segments was counted
	segments int32
}

// knownPages bounds the memory of readers: of what lies behind so many pages of the table,
// nobody is known to be the only reader.
const knownPages = 1 << 24

// count takes in the sequences of a step, which need not have been checked.
func (r *readers) count(sequences []Sequence) {
	if r.step++; r.step == 0 {
		clear(r.at[:cap(r.at)])
		r.step = 1
	}
	at, step := r.at, r.step
	for i := range sequences {
		for j := range sequences[i].Segments {
			page := int(sequences[i].Segments[j].Page)
			if uint(page) >= knownPages {
				continue
			}
			if page >= len(at) {
				at = resize(at, page+1)
			}
			if at[page].step != step {
				at[page] = reader{step: step}
			}
			at[page].segments++
		}
	}
	r.at = at
}

// only is whether so many segments are all that begin at a page of the step.
func (r *readers) only(segments, page int32) bool {
	return page < knownPages && r.at[page].segments == segments
}
