package serve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Entry is a sequence in a batch, with its number of new tokens in this step.
type Entry struct {
	Sequence *Sequence
	Tokens   int
}

// Schedule makes a step of a batch: room for every sequence's new tokens, and
// the work lists on the device. The rows of the step's tensors are the entries'
// new tokens, one entry behind the other. The step must be ended with Commit or
// Abort; until then its sequences can't be in another.
//
// An entry of few tokens is attended by decode and one of more by extend, in
// any mixture; by which kernel of extend follows from the sequence's own lengths.
// How a sequence is attended depends on itself alone, so its outputs have the same bits
// in any batch; but for kernels with shared decode where Model.Sharing is fastest: then
// it depends on who else holds its chunks; and for extend where Model.Batching is fastest.
//
// It does not wait for the steps before, which may still be at work: it waits until
// the device has the lists of the last that used the same memory, and has so
// begun with it. Where the device has no events, it waits for all that is queued.
func (e *Engine) Schedule(ctx context.Context, batch []Entry) (*Step, error) {
	return e.schedule(ctx, batch, nil)
}

// schedule makes a step in the workspace of a graph, or in one of its own.
func (e *Engine) schedule(ctx context.Context, batch []Entry, g *Graph) (_ *Step, err error) {
	start := time.Now()
	defer func() {
		if err != nil {
			e.metrics.failed.Inc()
			e.log.Warn("schedule failed", "sequences", len(batch), "error", err)
			err = fmt.Errorf("serve: schedule: %w", err)
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := e.enter(ctx, beside); err != nil {
		return nil, err
	}
	defer e.leave(beside)
	if err := e.claim(batch); err != nil {
		return nil, err
	}
	s := &Step{engine: e, stream: e.stream, graph: g, entries: slices.Clone(batch), start: start}
	defer func() {
		if err != nil {
			s.graph = nil // its caller has it
			s.rollBack()
		}
	}()
	if err := s.openLane(); err != nil {
		return nil, err
	}
	if g != nil {
		s.space = g.space
		err = g.space.settle(ctx, e)
	} else {
		s.space, err = e.takeSpace(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := s.list(); err != nil {
		return nil, err
	}
	if err := s.place(ctx); err != nil {
		return nil, err
	}
	e.metrics.scheduled.Observe(time.Since(start).Seconds())
	return s, nil
}

// claim takes all sequences of a batch, or none.
func (e *Engine) claim(batch []Entry) (err error) {
	if len(batch) == 0 {
		return fmt.Errorf("an empty batch")
	}
	for i, entry := range batch {
		switch {
		case entry.Sequence == nil || entry.Sequence.engine != e:
			err = fmt.Errorf("not a sequence of this engine")
		case entry.Tokens < 1:
			err = fmt.Errorf("%d new tokens, want at least 1", entry.Tokens)
		default:
			err = entry.Sequence.claim()
		}
		if err != nil {
			if slices.ContainsFunc(batch[:i], func(e Entry) bool { return e.Sequence == entry.Sequence }) {
				err = fmt.Errorf("%w: it is in the batch twice", err)
			}
			for _, claimed := range batch[:i] {
				claimed.Sequence.unclaim()
			}
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return nil
}

// list extends the sequences and lists what the step is made of.
func (s *Step) list() error {
	e, w := s.engine, s.space
	decodeTokens := e.routes.options(decode).Rows / e.model.Group
	w.reset(slices.ContainsFunc(s.entries, func(entry Entry) bool { return entry.Tokens <= decodeTokens }))
	w.groups[decodeGroup].route = e.routes.first[decode]
	w.batch = w.batch[:0]
	for i, entry := range s.entries {
		if w.fixed != nil && entry.Tokens > decodeTokens {
			return fmt.Errorf("entry %d: %w: %d new tokens, a graph takes at most %d of a sequence", i, ErrFixedSize, entry.Tokens, decodeTokens)
		}
		w.batch = append(w.batch, kvcache.Extension{Sequence: entry.Sequence.kv, Tokens: entry.Tokens})
	}
	extended, slots, err := w.table.Extend(w.slots, w.batch)
	if err != nil {
		return err
	}
	w.slots, s.extended = slots, true
	together := -1 // none
	if e.model.Batching == fastest {
		together = e.routes.together(s.entries, extended, decodeTokens)
	}
	for i := range extended {
		of, tokens := &extended[i], s.entries[i].Tokens
		s.reads += len(of.Segments) - 1         // all but own tokens, of which each has new ones
		own := &of.Segments[len(of.Segments)-1] // which ends with the new tokens
		stored := int(own.Tokens) - tokens
		first := int(own.Offset) + stored
		if e.model.Encoding == baked {
			stored = first
		}
		g := &w.groups[decodeGroup]
		if tokens > decodeTokens {
			route := together
			if route < 0 {
				route = e.routes.of(extend, tokens, tokensOf(of.Segments))
			}
			g = &w.groups[decodeGroup+1+route-e.routes.first[extend]]
			g.route = route
		}
		w.add(g, tokens, first, stored, of)
	}
	s.shared = s.reads - w.table.Chunks
	return nil
}

// tokensOf is the tokens of KV of segments.
func tokensOf(segments []schedule.Segment) int {
	n := 0
	for i := range segments {
		n += int(segments[i].Tokens)
	}
	return n
}

// scheduleChunk makes the step that encodes a chunk.
func (e *Engine) scheduleChunk(ctx context.Context, tokens int, pages []int32) (_ *Step, err error) {
	if err := e.enter(ctx, beside); err != nil {
		return nil, err
	}
	defer e.leave(beside)
	s := &Step{engine: e, stream: e.stream, start: time.Now()}
	defer func() {
		if err != nil {
			e.metrics.failed.Inc()
			s.rollBack()
		}
	}()
	if err := s.openLane(); err != nil {
		return nil, err
	}
	if s.space, err = e.takeSpace(ctx); err != nil {
		return nil, err
	}
	w := s.space
	w.reset(false)
	w.table.Reset()
	segments := []schedule.Segment{{Page: w.table.Append(pages), Tokens: int32(tokens), Own: true}}
	w.slots = e.model.shape().Slots(w.slots, pages, 0, tokens)
	g := &w.groups[decodeGroup+1]
	g.route = e.routes.of(prefill, tokens, tokens)
	w.add(g, tokens, 0, 0, &kvcache.Extended{Segments: segments})
	if err := s.place(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// place builds the lists and puts them on the device.
func (s *Step) place(ctx context.Context) error {
	e, w := s.engine, s.space
	if err := w.build(e); err != nil {
		return err
	}
	a, err := w.upload(ctx, e)
	if err != nil {
		return err
	}
	s.tokens = len(w.positions)
	s.attended = make([]bool, e.model.Layers)
	s.prepare(&a)
	return nil
}
