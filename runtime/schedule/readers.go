package schedule

import "github.com/kgen-project/kgen/runtime/abi"

// readers knows which segments of a step are the only one that begins at its page. Own tokens
// are their sequence's alone.
type readers struct {
	pages  []readPage // by Segment.Page
	step   uint32     // what pages says of another is of a step that is forgotten
	tokens int        // of the step's chunks, each counted once
	many   bool       // too many tokens for this to be of use
	news   bool       // a segment that was the only one of its page is so no more, or the other way round
	odd    bool       // segments of one page have different tokens
}

// readPage is the segments that begin at a page.
type readPage struct {
	step     uint32
	segments int32
	tokens   int32 // of the first of them
}

// knownPages bounds the memory of readers: what lies behind so many pages of the table is
// taken to have others.
const knownPages = 1 << 22

// begin forgets all that there were.
func (r *readers) begin() {
	if r.step++; r.step == 0 {
		clear(r.pages[:cap(r.pages)])
		r.step = 1
	}
	r.tokens, r.news, r.odd = 0, true, false
}

// see takes in the sequences of a step.
func (r *readers) see(sequences []Sequence) {
	r.begin()
	for i := range sequences {
		r.add(sequences[i].Segments)
	}
}

// know takes in the chunks of a step.
func (r *readers) know(chunks []chunk) {
	r.begin()
	for i := range chunks {
		r.count(chunks[i].page, chunks[i].tokens, chunks[i].holds)
	}
}

// add takes in the segments of one sequence more.
func (r *readers) add(segments []Segment) {
	for i := range segments {
		if g := &segments[i]; !g.Own {
			r.count(g.Page, g.Tokens, 1)
		}
	}
}

// count takes in n segments of so many tokens that begin at a page.
func (r *readers) count(page, tokens, n int32) {
	if page >= knownPages {
		return
	}
	if int(page) >= len(r.pages) {
		r.pages = resize(r.pages, int(page)+1)
	}
	p := &r.pages[page]
	if p.step != r.step || p.segments == 0 {
		*p = readPage{r.step, 0, tokens}
		r.tokens += int(tokens)
	}
	r.news = r.news || p.segments == 1
	p.segments += n
	r.odd = r.odd || p.tokens != tokens
}

// remove forgets the segments of a sequence, by what one of its tiles reads.
func (r *readers) remove(reads []read) {
	for i := range reads {
		if page := reads[i].page; page != ownPage && page < knownPages {
			p := &r.pages[page]
			if p.segments--; p.segments == 0 {
				r.tokens -= int(p.tokens)
			}
			r.news = r.news || p.segments == 1
		}
	}
}

// limit says that in a step of more tokens than most, each counted once, all have others;
// so many are own tokens. 0: no limit.
func (r *readers) limit(own, most int) {
	many := most > 0 && r.tokens+own > most
	r.news = r.news || many != r.many
	r.many = many
}

// one is whether no other segment of the step has the pages of this.
func (r *readers) one(s *Segment) bool {
	return !r.many && s.Page < knownPages && (s.Own || r.pages[s.Page].segments == 1)
}

// mark gives the runs of a sequence's tiles the pages of its segments, which are those that the
// tiles read, and says which of them are read once.
func (r *readers) mark(segments []Segment, tiles int, runs []abi.Run, reads []read) {
	n := 0
	for range tiles {
		for i := range segments {
			g, read, once := &segments[i], &reads[i], int32(0)
			// Two tiles walk the same keys at about the same time.
			if tiles <= 2 && r.one(g) {
				once = 1
			}
			for range read.runs {
				runs[n].Page, runs[n].Once = g.Page, once
				n++
			}
			read.page = g.Page
			if g.Own {
				read.page = ownPage
			}
		}
		reads = reads[len(segments):]
	}
}
