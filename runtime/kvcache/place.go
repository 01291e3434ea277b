package kvcache

import (
	"fmt"
	"slices"
)

// Packed is the offset that puts a segment right behind what comes before it.
const Packed = -1

// Placement is a chunk in a sequence.
type Placement struct {
	Chunk  *Chunk
	Offset int // position of the chunk's token 0, or Packed
}

// Pack places chunks one behind the other.
func Pack(chunks ...*Chunk) []Placement {
	placements := make([]Placement, len(chunks))
	for i, h := range chunks {
		placements[i] = Placement{Chunk: h, Offset: Packed}
	}
	return placements
}

// segment is a chunk, or own tokens that something was placed behind.
type segment struct {
	entry  *entry
	offset int32
}

// Open makes a sequence of the chunks in the order given, with no tokens of
// its own yet. Offsets may leave gaps, be equal and go back; one chunk may
// stand in it several times. Packed is behind the segment before it. own is the
// position of the first own token; Packed is behind the highest position of
// the chunks.
func (c *Cache) Open(placements []Placement, own int) (*Sequence, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("kvcache: %w", ErrClosed)
	}
	segments, offset, err := c.resolve(placements, 0, own)
	if err != nil {
		return nil, fmt.Errorf("kvcache: %w", err)
	}
	s := &Sequence{cache: c, segments: segments, layout: c.newNumber(), offset: offset}
	s.join()
	return s, nil
}

// Place puts chunks behind the own tokens that there are: those that come next
// see both. It says where the chunks stand as [Cache.Open] does; Packed is
// behind the own tokens for the first, and for own behind the highest position of
// these chunks and the token before them. Without chunks, it moves where the own
// tokens go on.
//
// The own tokens before are then as a chunk that this sequence and its forks
// alone hold, whose last page stays as full as it is. Nothing is copied.
func (s *Sequence) Place(placements []Placement, own int) error {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	segments, offset, err := c.resolve(placements, int(s.offset+s.tokens), own)
	if err != nil {
		return fmt.Errorf("kvcache: place: %w", err)
	}
	s.seal()
	s.offset = offset
	s.segments, s.layout = append(s.segments, segments...), c.newNumber()
	c.refAll(segments)
	c.unshared += pagesOf(segments)
	return nil
}

// resolve gives chunks behind position next, and the own tokens behind them, their
// positions.
func (c *Cache) resolve(placements []Placement, next, own int) (segments []segment, offset int32, err error) {
	end := next
	for i, p := range placements {
		if p.Chunk == nil || p.Chunk.cache != c {
			return nil, 0, fmt.Errorf("segment %d: no chunk of this cache", i)
		}
		if err := p.Chunk.check(); err != nil {
			return nil, 0, fmt.Errorf("segment %d: %w", i, err)
		}
		at, tokens := p.Offset, p.Chunk.Tokens()
		if at == Packed {
			at = next
		}
		if at < 0 || at > c.config.MaxPosition-tokens {
			return nil, 0, fmt.Errorf("segment %d: %d tokens at offset %d, want positions within 0 to %d: %w",
				i, tokens, at, c.config.MaxPosition-1, ErrPosition)
		}
		next = at + tokens
		end = max(end, next)
		segments = append(segments, segment{entry: p.Chunk.entry, offset: int32(at)})
	}
	if own == Packed {
		own = end
	}
	if own < 0 || own > c.config.MaxPosition {
		return nil, 0, fmt.Errorf("own tokens at %d, want 0 to %d: %w", own, c.config.MaxPosition, ErrPosition)
	}
	return segments, int32(own), nil
}

// newNumber is one that nothing had: of a layout, of own tokens' pages, or of a layout's place in
// a table.
func (c *Cache) newNumber() uint64 {
	c.numbers++
	return c.numbers
}

func (c *Cache) refAll(segments []segment) {
	for _, g := range segments {
		c.ref(g.entry)
	}
}

// seal makes the own tokens behind the segments one of them.
func (s *Sequence) seal() {
	if s.tokens == 0 {
		return
	}
	e := s.cache.newEntry(s.tokens)
	e.own, e.refs = true, 1
	s.cache.place(e, s.pages)
	s.segments = append(s.segments, segment{entry: e, offset: s.offset})
	s.before += s.tokens
	s.setPages(nil)
	s.tokens = 0
}

// unseal undoes the last seal and takes away what came behind it.
func (s *Sequence) unseal() {
	s.keep(0)
	s.layout = s.cache.newNumber()
	for {
		last := len(s.segments) - 1
		g := s.segments[last]
		s.segments = s.segments[:last]
		if g.entry.own {
			s.setPages(slices.Clone(g.entry.pages))
			s.tokens, s.offset = g.entry.tokens, g.offset
			s.before -= s.tokens
			s.cache.pool.retain(s.pages) // forks may hold the entry
			s.cache.unref(g.entry)
			return
		}
		s.cache.unshared -= len(g.entry.pages)
		s.cache.unref(g.entry)
	}
}
