package kvcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// restart lets everything go, persists, and goes on with a new cache that has
// loaded what the old one persisted.
func (r *run) restart() error {
	var file bytes.Buffer
	if err := r.cache.Persist(context.Background(), &file); err != nil {
		return err
	}
	if err := r.end(); err != nil {
		return err
	}
	var err error
	if r.cache, err = r.newCache(); err != nil {
		return err
	}
	r.table = kvcache.Table{}
	old := *r.model
	n, err := r.cache.Load(context.Background(), &file)
	if errors.Is(err, kvcache.ErrNoPages) {
		n, err = 0, nil // own tokens took no page of theirs, chunks in both tiers did
	} else if err == nil && n != len(old.chunks) {
		return fmt.Errorf("%d chunks loaded, want %d", n, len(old.chunks))
	}
	if err != nil {
		return err
	}
	r.restarts++
	r.restores += old.stats.Restores
	r.drops += old.stats.HostDrops
	r.copies += old.stats.PageCopies
	*r.model = model{free: propertyPages, total: propertyPages, hostFree: propertyHostPages, hostTotal: propertyHostPages,
		chunks: map[int]*modelChunk{}, tokens: old.tokens}
	if n == 0 {
		return nil
	}
	// Which are where, and in which order, is the cache's choice: take each into
	// one's hands to see that it is right, then drop them.
	return r.drain(old.chunks)
}

func (r *run) drain(chunks map[int]*modelChunk) error {
	for doc := range chunks {
		chunk, err := r.cache.Get(context.Background(), r.id(doc))
		if errors.Is(err, kvcache.ErrUnknown) && r.cache.Stats().HostDrops > 0 {
			continue // bringing back another has left no room for it
		}
		if err != nil {
			return err
		}
		d := r.document(doc)
		pages, err := chunk.Pages(nil)
		if err := errors.Join(err, check(r.cache, r.device, d.Tokens, shape.Slots(nil, pages, 0, len(d.Tokens)))); err != nil {
			return err
		}
		chunk.Release()
		if err := r.cache.Drop(r.id(doc)); err != nil {
			return err
		}
	}
	s := r.cache.Stats()
	if s.PagesUsed != 0 || s.HostPages != 0 || s.Chunks != 0 {
		return fmt.Errorf("dropped all, and there is %+v", s)
	}
	return r.reopen()
}

// reopen starts afresh with counters at zero.
func (r *run) reopen() (err error) {
	if err := r.cache.Close(); err != nil {
		return err
	}
	r.cache, err = r.newCache()
	return err
}

// compare compares the counts, and at times the contents.
func (r *run) compare(i int) error {
	want := r.model.snapshot()
	for _, s := range r.sequences {
		for _, g := range s.segments {
			if g.doc < 0 {
				want.PagesUnshared += len(g.pages)
			} else {
				want.PagesUnshared += r.model.pages(g.doc)
			}
		}
		want.PagesUnshared += shape.Pages(len(s.tokens))
	}
	if got := r.cache.Stats(); got != want {
		return fmt.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
	if i%25 == 0 {
		return r.contents()
	}
	return nil
}

// contents compares what stands in the pages of all handles and sequences
// with what was written.
func (r *run) contents() error {
	for _, h := range r.handles {
		d := r.document(h.doc)
		pages, err := h.chunk.Pages(nil)
		if err := errors.Join(err, check(r.cache, r.device, d.Tokens, shape.Slots(nil, pages, 0, len(d.Tokens)))); err != nil {
			return fmt.Errorf("document %d: %w", h.doc, err)
		}
	}
	var all [][]schedule.Segment
	if r.rng.IntN(2) == 0 { // all of them, as an engine does
		of, err := r.extendNone(&r.table)
		if err != nil {
			return err
		}
		for i, s := range r.sequences {
			if err := r.layout(s, &of[i]); err != nil {
				return err
			}
			all = append(all, of[i].Segments)
		}
		if err := r.sameTable(all); err != nil {
			return err
		}
	} else {
		r.table.Reset()
		for i, s := range r.sequences {
			segments, err := r.table.Add(nil, s.s)
			if err != nil {
				return fmt.Errorf("sequence %d: %w", i, err)
			}
			all = append(all, segments)
		}
	}
	first := map[int]int32{}
	var slots []int32
	for i, s := range r.sequences {
		segments := all[i]
		want := len(s.segments)
		if len(s.tokens) > 0 {
			want++
		}
		if len(segments) != want {
			return fmt.Errorf("sequence %d: %d segments, want %d", i, len(segments), want)
		}
		for j, g := range segments {
			p := placed{-1, s.own}
			if j < len(s.segments) {
				p = s.segments[j]
			}
			tokens, offset := p.tokens, p.offset
			if p.doc >= 0 {
				tokens = r.document(p.doc).Tokens
				if page, ok := first[p.doc]; ok && page != g.Page {
					return fmt.Errorf("sequence %d: document %d is in the table twice", i, p.doc)
				}
				first[p.doc] = g.Page
			}
			if int(g.Tokens) != len(tokens) || int(g.Offset) != offset || g.Own != (j == len(s.segments)) {
				return fmt.Errorf("sequence %d: segment %+v, want %d tokens at %d", i, g, len(tokens), offset)
			}
			slots = shape.Slots(slots[:0], r.table.Pages[g.Page:], 0, len(tokens))
			if err := check(r.cache, r.device, tokens, slots); err != nil {
				return fmt.Errorf("sequence %d, segment %d: %w", i, j, err)
			}
		}
		if err := r.ownSlots(s); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
	}
	return nil
}

// extendNone makes the table that of all sequences, with no tokens more.
func (r *run) extendNone(table *kvcache.Table) ([]kvcache.Extended, error) {
	var batch []kvcache.Extension
	for _, s := range r.sequences {
		batch = append(batch, kvcache.Extension{Sequence: s.s})
	}
	of, slots, err := table.Extend(nil, batch)
	if len(slots) > 0 {
		return nil, fmt.Errorf("slots %v of no tokens", slots)
	}
	return of, err
}

// layout says whether all sequences that had the layout hold the same, and all that had the
// place, in whatever table, the same pages.
func (r *run) layout(s *sequence, of *kvcache.Extended) error {
	held := ""
	for _, g := range s.segments {
		held += fmt.Sprint(g.doc, g.offset, g.tokens, "; ")
	}
	other, ok := r.layouts[of.Layout]
	r.layouts[of.Layout] = held
	if ok && held != other {
		return fmt.Errorf("layout %d is that of %s and of %s", of.Layout, held, other)
	}
	placed := fmt.Sprint(of.Layout, of.Segments[:len(s.segments)])
	other, ok = r.placed[of.Placed]
	r.placed[of.Placed] = placed
	if ok && placed != other {
		return fmt.Errorf("placed %d is that of %s and of %s", of.Placed, placed, other)
	}
	return nil
}

// sameTable compares the table, in which the sequences have these segments, with one that
// has seen no other step.
func (r *run) sameTable(segments [][]schedule.Segment) error {
	var table kvcache.Table
	of, err := r.extendNone(&table)
	if err != nil {
		return err
	}
	var want [][]schedule.Segment
	for i := range of {
		if err := r.layout(r.sequences[i], &of[i]); err != nil {
			return err
		}
		want = append(want, of[i].Segments)
	}
	if r.table.Number != r.copied.number+1 {
		r.copied.pages = slices.Clone(r.table.Pages)
	}
	r.copied.number = r.table.Number
	pages := slices.Grow(r.copied.pages, len(table.Pages))[:len(table.Pages)]
	for _, c := range r.table.Changed {
		copy(pages[c.Begin:c.End], r.table.Pages[c.Begin:c.End])
	}
	if r.copied.pages = pages; !slices.Equal(pages, table.Pages) {
		return fmt.Errorf("of the table more has changed than %v: pages %v, want %v", r.table.Changed, pages, table.Pages)
	}
	if !slices.EqualFunc(segments, want, slices.Equal[[]schedule.Segment]) || !slices.Equal(r.table.Pages, table.Pages) || r.table.Chunks != table.Chunks {
		return fmt.Errorf("a table of %d chunks, segments %v, pages %v, want %d chunks, %v, %v",
			r.table.Chunks, segments, r.table.Pages, table.Chunks, want, table.Pages)
	}
	return nil
}

// ownSlots compares what stands where the sequence says that own tokens do.
func (r *run) ownSlots(s *sequence) error {
	var tokens []int32
	for _, g := range append(slices.Clone(s.segments), placed{-1, s.own}) {
		if g.doc < 0 {
			tokens = append(tokens, g.tokens...)
		}
	}
	if n := s.s.Tokens(); n != len(tokens) || s.s.Next() != s.offset+len(s.tokens) {
		return fmt.Errorf("%d own tokens, want %d; the next at %d, want %d", n, len(tokens), s.s.Next(), s.offset+len(s.tokens))
	}
	begin := r.rng.IntN(len(tokens) + 1)
	slots, err := s.s.Slots(nil, begin)
	if err == nil && len(slots) != len(tokens)-begin {
		err = fmt.Errorf("%d slots of %d own tokens from %d", len(slots), len(tokens), begin)
	}
	if err != nil {
		return err
	}
	return check(r.cache, r.device, tokens[begin:], slots)
}

// end closes everything and looks for leaks.
func (r *run) end() error {
	if err := r.contents(); err != nil {
		return err
	}
	for len(r.sequences) > 0 {
		if err := r.close(0); err != nil {
			return err
		}
	}
	for _, h := range r.handles {
		if err := h.chunk.Unpin(); err != nil {
			return err
		}
		r.model.chunks[h.doc].pinned = false
	}
	for len(r.handles) > 0 {
		if err := r.release(0); err != nil {
			return err
		}
	}
	if err := r.compare(0); err != nil {
		return err
	}
	if err := r.cache.Close(); err != nil {
		return err
	}
	if len(r.device.regions) > 0 || len(r.device.host) > 0 {
		return fmt.Errorf("%d device and %d host allocations are left", len(r.device.regions), len(r.device.host))
	}
	return nil
}
