package kvcache

import (
	"fmt"
	"slices"
)

// Sequence is a request's chunks at their offsets and its own tokens: behind
// the chunks, and where [Sequence.Place] was called, between them. It holds the
// chunks: the handles it was given may be released.
type Sequence struct {
	cache    *Cache
	segments []segment
	layout   uint64  // names segments: those of one layout are the same
	before   int32   // own tokens in segments
	tokens   int32   // own tokens behind the segments
	offset   int32   // position of the first of these
	pages    []int32 // that hold these; one that a fork shares is copied before it is written
	paged    uint64  // names pages: those of one number are the same
	closed   bool
}

// join counts a new sequence and its holds.
func (s *Sequence) join() {
	s.cache.refAll(s.segments)
	s.cache.pool.retain(s.pages)
	s.cache.sequences++
	s.cache.unshared += s.unshared()
}

// unshared is the pages that the sequence's chunks and own tokens take.
func (s *Sequence) unshared() int { return len(s.pages) + pagesOf(s.segments) }

// pagesOf is the pages of segments, those of one that is there twice counted twice.
func pagesOf(segments []segment) int {
	pages := 0
	for _, g := range segments {
		pages += len(g.entry.pages)
	}
	return pages
}

// keep leaves the first n of the own tokens' pages.
func (s *Sequence) keep(n int) {
	if n == len(s.pages) {
		return
	}
	s.cache.unshared -= len(s.pages) - n
	s.cache.pool.release(s.pages[n:])
	s.setPages(s.pages[:n])
}

// setPages gives own tokens other pages.
func (s *Sequence) setPages(pages []int32) { s.pages, s.paged = pages, s.cache.newNumber() }

// Tokens is the number of own tokens.
func (s *Sequence) Tokens() int {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	return int(s.before + s.tokens)
}

// Next is the position of the next own token.
func (s *Sequence) Next() int {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	return int(s.offset + s.tokens)
}

// Extend makes room for n more own tokens, whose K and V the caller then
// appends to [Sequence.Slots]. Where a fork shares the last page and that is
// not full, this sequence gets a copy of it.
func (s *Sequence) Extend(n int) error {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	return s.extend(n)
}

func (s *Sequence) extend(n int) error {
	c := s.cache
	if n < 0 || n > c.config.MaxPosition-int(s.offset+s.tokens) {
		return fmt.Errorf("kvcache: %d own tokens more behind position %d, want positions below %d: %w",
			n, s.offset+s.tokens, c.config.MaxPosition, ErrPosition)
	}
	if n == 0 {
		return nil
	}
	last := len(s.pages) - 1
	room := len(s.pages)*c.config.Shape.PageSize - int(s.tokens) // in the last page
	shared := room > 0 && c.pool.refs[s.pages[last]] > 1
	if n > room || shared {
		if err := s.addPages(c.config.Shape.Pages(max(0, n-room)), shared); err != nil {
			return fmt.Errorf("kvcache: %d own tokens more: %w", n, err)
		}
	}
	s.tokens += int32(n)
	return nil
}

// addPages takes so many pages more, and one in place of the last if a fork shares that.
func (s *Sequence) addPages(need int, shared bool) error {
	c := s.cache
	if shared {
		need++
	}
	held := len(s.pages)
	pages, err := c.take(s.pages, need)
	if err != nil {
		return err
	}
	if shared {
		// The first new page takes the last one's place.
		last := held - 1
		if err := c.pool.copyPage(c.config.Stream, pages[held], pages[last]); err != nil {
			c.pool.release(pages[held:])
			return fmt.Errorf("copy the last page of a fork: %w", err)
		}
		c.stats.PageCopies++
		c.pool.release(pages[last:held])
		pages = slices.Delete(pages, last, held)
	}
	c.unshared += len(pages) - held
	s.setPages(pages)
	return nil
}

// Truncate leaves the first n own tokens. What was placed behind a token that
// goes, goes too.
func (s *Sequence) Truncate(n int) error {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	if n < 0 || n > int(s.before+s.tokens) {
		return fmt.Errorf("kvcache: truncate to %d own tokens, want 0 to %d", n, s.before+s.tokens)
	}
	for n < int(s.before) {
		s.unseal()
	}
	s.shorten(n - int(s.before))
	return nil
}

// shorten leaves the first n of the own tokens behind the segments.
func (s *Sequence) shorten(n int) {
	s.tokens = int32(n)
	s.keep(s.cache.config.Shape.Pages(n))
}

// Fork returns a sequence with the same segments and own tokens. It copies
// nothing: see [Sequence.Extend].
func (s *Sequence) Fork() (*Sequence, error) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if err := s.check(); err != nil {
		return nil, err
	}
	fork := *s
	fork.segments = slices.Clone(s.segments)
	fork.pages = slices.Clone(s.pages)
	fork.join()
	return &fork, nil
}

// Slots appends where the own tokens from begin on stand, as
// [abi.AppendParams] takes it: page * page size + place in the page.
func (s *Sequence) Slots(dst []int32, begin int) ([]int32, error) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if err := s.check(); err != nil {
		return dst, err
	}
	if begin < 0 || begin > int(s.before+s.tokens) {
		return dst, fmt.Errorf("kvcache: slots of own tokens from %d, want 0 to %d", begin, s.before+s.tokens)
	}
	shape := s.cache.config.Shape
	for _, g := range s.segments {
		if g.entry.own {
			n := int(g.entry.tokens)
			dst = shape.Slots(dst, g.entry.pages, min(begin, n), n)
			begin -= min(begin, n)
		}
	}
	return shape.Slots(dst, s.pages, begin, int(s.tokens)), nil
}

// Slots appends the slots of tokens begin to end-1 of a list of pages.
func (s Shape) Slots(dst, pages []int32, begin, end int) []int32 {
	page, place := begin/s.PageSize, begin%s.PageSize
	for range end - begin {
		if place == s.PageSize {
			page, place = page+1, 0
		}
		dst = append(dst, pages[page]*int32(s.PageSize)+int32(place))
		place++
	}
	return dst
}

// Close gives up the sequence's pages and its holds. A second call does
// nothing.
func (s *Sequence) Close() {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.cache.sequences--
	s.cache.unshared -= s.unshared()
	s.cache.pool.release(s.pages)
	for _, g := range s.segments {
		s.cache.unref(g.entry)
	}
	s.pages, s.segments, s.before, s.tokens = nil, nil, 0, 0
}

func (s *Sequence) check() error {
	if s.closed || s.cache.closed {
		return fmt.Errorf("kvcache: sequence: %w", ErrClosed)
	}
	return nil
}
