package schedule

import "github.com/kgen-project/kgen/runtime/abi"

// readers knows which chunks' segments are the only one of a step that begins at their page.
// Own tokens are their sequence's alone.
type readers struct {
	met    []uint32 // by Segment.Page: 2 step in the last step that has a segment there, and 1 more where it has several
	step   uint32
	tokens int  // of the step's chunks, each counted once
	many   bool // too many tokens for this to be of use
}

// knownPages bounds the memory of readers: what lies behind so many pages of the table is
// taken to have others.
const knownPages = 1 << 24

// see takes in the sequences of a step.
func (r *readers) see(sequences []Sequence) {
	if r.step++; r.step == 1<<31 {
		clear(r.met[:cap(r.met)])
		r.step = 1
	}
	r.tokens = 0
	step := 2 * r.step
	for i := range sequences {
		for j := range sequences[i].Segments {
			g := &sequences[i].Segments[j]
			if g.Own || g.Page >= knownPages {
				continue
			}
			if int(g.Page) >= len(r.met) {
				r.met = resize(r.met, int(g.Page)+1)
			}
			if met := &r.met[g.Page]; *met < step {
				*met = step
				r.tokens += int(g.Tokens)
			} else {
				*met = step + 1
			}
		}
	}
}

// limit says that in a step of more tokens than most, each counted once, all have others;
// so many are own tokens. 0: no limit. It returns whether that is news.
func (r *readers) limit(own, most int) bool {
	many := most > 0 && r.tokens+own > most
	news := many != r.many
	r.many = many
	return news
}

// one is whether no other segment of the step has the pages of this.
func (r *readers) one(s *Segment) bool {
	return !r.many && s.Page < knownPages && (s.Own || r.met[s.Page] == 2*r.step)
}

// mark gives the runs of a tile the pages of its sequence's segments, which are those that it
// reads, and says which of them are read once; the sequence has so many tiles. It returns
// how many runs the tile has.
func (r *readers) mark(segments []Segment, tiles int, runs []abi.Run, reads []read) (n int) {
	for i := range segments {
		read, once := &reads[i], int32(0)
		// Two tiles walk the same keys at about the same time.
		if tiles <= 2 && r.one(&segments[i]) {
			once = 1
		}
		read.page = segments[i].Page
		for range read.runs {
			runs[n].Page, runs[n].Once = read.page, once
			n++
		}
	}
	return n
}
