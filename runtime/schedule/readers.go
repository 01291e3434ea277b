package schedule

// readers knows which segments of a step are the only one of their pages. It takes pages
// to be new in ascending order, as a page table that is made for a step has them: of one
// that comes behind a later one it says that there are others.
type readers struct {
	repeated []uint32 // by Segment.Page: the last step in which it came again
	step     uint32
	none     bool // no page of this step did
	many     bool // too many tokens for this to be of use
}

// knownPages bounds the memory of readers: what lies behind so many pages of the table is
// taken to have others.
const knownPages = 1 << 24

func (r *readers) begin() {
	if r.step++; r.step == 0 {
		clear(r.repeated[:cap(r.repeated)])
		r.step = 1
	}
	r.none = true
}

// see takes in the sequences of a step, which need not have been checked; of more than so
// many tokens, each counted once, it says that all have others. 0: no limit.
func (r *readers) see(sequences []Sequence, most int) {
	r.begin()
	next := int32(0) // behind the pages so far
	tokens := 0
	for i := range sequences {
		for j := range sequences[i].Segments {
			switch page := sequences[i].Segments[j].Page; {
			case page >= next:
				next = min(page, knownPages) + 1
				tokens += int(sequences[i].Segments[j].Tokens)
			case page >= 0:
				if int(page) >= len(r.repeated) {
					r.repeated = resize(r.repeated, int(next))
				}
				r.repeated[page] = r.step
				r.none = false
			}
		}
	}
	r.many = most > 0 && tokens > most
}

// know takes in the chunks of a step whose pages are new in ascending order, all of them
// below next. Its tokens are so many, each counted once.
func (r *readers) know(chunks []chunk, next int32, tokens, most int) {
	r.begin()
	r.repeated = resize(r.repeated, max(len(r.repeated), int(next)))
	for i := range chunks {
		if c := &chunks[i]; c.holds > 1 {
			r.repeated[c.page] = r.step
			r.none = false
		}
	}
	r.many = most > 0 && tokens > most
}

// one is whether no other segment of the step has the pages of this.
func (r *readers) one(s *Segment) bool {
	return !r.many && s.Page < knownPages && (r.none || int(s.Page) >= len(r.repeated) || r.repeated[s.Page] != r.step)
}
