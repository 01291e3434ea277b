package kvcache_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

type sequence struct {
	s        *kvcache.Sequence
	segments []placed
	own      // behind the segments
}

// placed is a document at its offset, or own tokens that something was placed behind.
type placed struct {
	doc int // negative: own tokens
	own
}

type own struct {
	offset int
	tokens []int32
	pages  []*modelPage
}

func newOwn(offset int) own { return own{offset: offset} }

// before is the own tokens in the segments.
func (s *sequence) before() (n int) {
	for _, g := range s.segments {
		if g.doc < 0 {
			n += len(g.tokens)
		}
	}
	return n
}

func (r *run) open() error {
	s := &sequence{}
	placements, segments, own := r.placements(0, 4)
	s.segments, s.offset = segments, own.want
	var err error
	if s.s, err = r.cache.Open(placements, own.given); err != nil {
		return err
	}
	for _, g := range s.segments {
		r.model.ref(g.doc, 1)
	}
	r.model.stats.Sequences++
	r.sequences = append(r.sequences, s)
	return nil
}

func (r *run) place(s *sequence) error {
	placements, segments, own := r.placements(s.offset+len(s.tokens), 3)
	err := s.s.Place(placements, own.given)
	for _, g := range append(segments, placed{-1, newOwn(own.want)}) {
		end := g.offset
		if g.doc >= 0 {
			end += len(r.document(g.doc).Tokens)
		}
		if end > propertyPositions {
			if !errors.Is(err, kvcache.ErrPosition) {
				return fmt.Errorf("error %v, want %v", err, kvcache.ErrPosition)
			}
			return nil
		}
	}
	if err != nil {
		return err
	}
	if len(s.tokens) > 0 {
		s.segments = append(slices.Clone(s.segments), placed{-1, s.own})
	}
	s.segments = append(s.segments, segments...)
	s.own = newOwn(own.want)
	for _, g := range segments {
		r.model.ref(g.doc, 1)
	}
	r.places++
	return nil
}

// offset is one as it is given, and the position that it must mean.
type offset struct{ given, want int }

// placements are fewer than n chunks behind position next, and the own tokens' offset.
func (r *run) placements(next, n int) (placements []kvcache.Placement, segments []placed, o offset) {
	end := next
	for range r.rng.IntN(min(n, len(r.handles)+1)) {
		h := r.handles[r.rng.IntN(len(r.handles))]
		at := kvcache.Packed
		if r.rng.IntN(2) == 0 {
			next = r.rng.IntN(40)
			at = next
		}
		placements = append(placements, kvcache.Placement{Chunk: h.chunk, Offset: at})
		segments = append(segments, placed{h.doc, newOwn(next)})
		next += h.chunk.Tokens()
		end = max(end, next)
	}
	if r.rng.IntN(4) == 0 {
		at := r.rng.IntN(propertyPositions)
		return placements, segments, offset{at, at}
	}
	return placements, segments, offset{kvcache.Packed, end}
}

func (r *run) extend(s *sequence) error {
	n := r.rng.IntN(10)
	before := len(s.tokens)
	var slots []int32 // by the table
	var err error
	byTable := r.rng.IntN(2) == 0
	if byTable {
		var table kvcache.Table
		_, slots, err = table.Extend(nil, []kvcache.Extension{{Sequence: s.s, Tokens: n}})
	} else {
		err = s.s.Extend(n)
	}
	if s.offset+before+n > propertyPositions {
		if !errors.Is(err, kvcache.ErrPosition) {
			return fmt.Errorf("error %v, want %v", err, kvcache.ErrPosition)
		}
		return nil
	}
	need := shape.Pages(before+n) - len(s.pages)
	copies := n > 0 && before%shape.PageSize != 0 && s.pages[len(s.pages)-1].refs > 1
	if copies {
		need++
	}
	ok := r.model.take(need)
	if err := r.refusal(err, !ok); err != nil || !ok {
		return err
	}
	if copies {
		r.model.stats.PageCopies++
		r.model.release(s.pages[len(s.pages)-1:])
		s.pages = s.pages[:len(s.pages)-1]
	}
	for range need {
		s.pages = append(s.pages, &modelPage{refs: 1})
	}
	for range n {
		r.token++
		s.tokens = append(s.tokens, -r.token)
	}
	want, err := s.s.Slots(nil, s.before()+before)
	if byTable && !slices.Equal(slots, want) {
		return fmt.Errorf("%d tokens more have slots %v, want %v", n, slots, want)
	}
	if err == nil {
		write(r.cache, r.device, s.tokens[before:], want)
	}
	return err
}

func (r *run) fork(s *sequence) error {
	f, err := s.s.Fork()
	if err != nil {
		return err
	}
	fork := &sequence{s: f, segments: slices.Clone(s.segments), own: own{s.offset, slices.Clone(s.tokens), slices.Clone(s.pages)}}
	for _, p := range fork.pages {
		p.refs++
	}
	for _, g := range fork.segments {
		r.hold(g)
	}
	r.model.stats.Sequences++
	r.sequences = append(r.sequences, fork)
	return nil
}

// hold counts a fork's hold on a segment; letGo ends a sequence's.
func (r *run) hold(g placed) {
	if g.doc >= 0 {
		r.model.ref(g.doc, 1)
		return
	}
	for _, p := range g.pages {
		p.refs++
	}
}

func (r *run) letGo(g placed) {
	if g.doc >= 0 {
		r.model.ref(g.doc, -1)
		return
	}
	r.model.release(g.pages)
}

func (r *run) truncate(s *sequence) error {
	n := r.rng.IntN(s.before() + len(s.tokens) + 1)
	if err := s.s.Truncate(n); err != nil {
		return err
	}
	for s.before() > n { // all goes from behind the last own tokens that are among the first n
		r.truncated++
		r.model.release(s.pages)
		last := s.segments[len(s.segments)-1]
		for last.doc >= 0 {
			r.letGo(last)
			s.segments = s.segments[:len(s.segments)-1]
			last = s.segments[len(s.segments)-1]
		}
		s.segments = s.segments[:len(s.segments)-1]
		s.own = own{last.offset, slices.Clone(last.tokens), slices.Clone(last.pages)}
	}
	n -= s.before()
	keep := shape.Pages(n)
	r.model.release(s.pages[keep:])
	s.tokens, s.pages = s.tokens[:n], s.pages[:keep]
	return nil
}

func (r *run) close(i int) error {
	s := r.sequences[i]
	s.s.Close()
	s.s.Close()
	r.model.release(s.pages)
	for _, g := range s.segments {
		r.letGo(g)
	}
	r.model.stats.Sequences--
	r.sequences = slices.Delete(r.sequences, i, i+1)
	if err := errors.Join(s.s.Extend(1), s.s.Place(nil, 0)); !errors.Is(err, kvcache.ErrClosed) || strings.Count(err.Error(), "closed") != 2 {
		return fmt.Errorf("extend and place of a closed sequence: %v", err)
	}
	return nil
}
