package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Step is one forward step: the new tokens of a batch through all layers. It is
// for one goroutine at a time, but Abort may be called from any.
type Step struct {
	engine  *Engine
	stream  cuda.Stream
	lane    cuda.Stream // that the step launches on: of the stream, where the device has lanes, else the stream
	graph   *Graph      // nil: launched as it is attended
	space   *workspace
	entries []Entry
	start   time.Time

	extended      bool // the entries' sequences have room for their new tokens
	tokens        int
	saved         int // tokens of KV, of a layer and KV head, that shared decode spared
	reads, shared int // chunks that sequences read, and those of them that others had read

	append       abi.AppendParams // but for what a layer gives
	attend       [groupCount]launch
	sharedDecode launch    // likewise; merged by attend[decodeGroup]
	launches     []*launch // those of them that have work; none waits for another

	mu       sync.Mutex // guards what follows
	attended []bool     // [layers]
	recorded bool       // in the capture of its graph: the engine's work is had alone
	err      error      // of a launch
	ended    bool
}

// launch is one group's attend and merge, but for what a layer gives.
type launch struct {
	route  int
	rotate abi.MaterialiseParams // ahead of it: no copies where keys are not rotated so
	params abi.AttendParams
	merge  abi.MergeParams // Tokens is 0 where there is nothing to merge
}

// Tokens is the number of rows of the step's tensors; while a graph is recorded, the
// most there can be.
func (s *Step) Tokens() int { return s.tokens }

// Spared is the bytes of KV that decode alone would read, in all layers, beyond those
// that the step reads: what several of its sequences hold is read once by shared
// decode. It is 0 where the device makes the lists: the engine's counter has the bytes some steps later.
func (s *Step) Spared() int64 { return int64(s.saved) * s.engine.model.keptBytes() }

// Stream is where the step's work is queued. What makes Q, K and V, and what
// reads Out, belongs there too.
func (s *Step) Stream() cuda.Stream { return s.stream }

// prepare fills in what all layers have in common.
func (s *Step) prepare(a *addresses) {
	e, w := s.engine, s.space
	m := &e.model
	tokens, pages := s.tokens, len(w.table.Pages)
	if w.fixed != nil {
		tokens, pages = w.fixed.tokens, w.fixed.pages
	}
	s.append = abi.AppendParams{
		Slots: a.slots, Positions: a.stored, Rope: e.rope, KVHeads: int32(m.KVHeads), Tokens: int32(tokens),
	}
	for i := range w.groups {
		g, at := &w.groups[i], &a.groups[i]
		s.attend[i] = launch{route: g.route}
		n := w.sizes(i)
		if n.items == 0 {
			continue
		}
		s.attend[i].params = abi.AttendParams{
			PartialOut: at.partialOut, PartialLSE: at.partialLSE, Items: at.items, Runs: at.runs,
			PageTable: a.table, Positions: a.positions, Rope: e.rope,
			KVHeads: int32(m.KVHeads), ItemCount: int32(n.items), Scale: m.Scale, RopeScale: m.RopeScale,
			RunCount: int32(n.runs), PageCount: int32(pages), Counter: at.counter,
		}
		if r := &g.rotated; len(r.lists.Copies) > 0 {
			l := &s.attend[i]
			l.rotate = r.params(e, at)
			l.params.KCache, l.params.KMap = r.keys.ptr, r.maps.K
			l.params.PageTable, l.params.PageCount = at.pages, int32(len(r.lists.Pages))
		}
		if n.merged == 0 {
			continue
		}
		if n.sharedItems > 0 {
			s.sharedDecode = launch{route: e.routes.first[sharedDecode], params: s.attend[i].params}
			p := &s.sharedDecode.params
			p.Items, p.Runs, p.Members, p.MemberOffsets = a.shared.items, a.shared.runs, a.shared.members, a.shared.offsets
			p.ItemCount, p.RunCount, p.Counter = int32(n.sharedItems), int32(n.sharedRuns), a.shared.counter
			s.saved = g.shared.Saved
		}
		s.attend[i].merge = abi.MergeParams{
			PartialOut: at.partialOut, PartialLSE: at.partialLSE, SlotBegin: at.slotBegin,
			QHeads: int32(m.queryHeads()), Tokens: int32(n.merged),
		}
	}
	for i := range s.attend {
		if l := &s.attend[i]; l.params.ItemCount > 0 {
			s.launches = append(s.launches, l)
		}
	}
	if s.sharedDecode.params.ItemCount > 0 { // last: in a graph it often has nothing, and keeps nobody waiting
		s.launches = append(s.launches, &s.sharedDecode)
	}
}

// Attend queues a layer's work, counted from 0: K and V of the new tokens are
// written to their pages, each query token attends to what its sequence holds
// and to what is before it among the new tokens, and the result goes to Out.
// Layers may come in any order; one that is attended again does all of it again. An
// error other than of the arguments, or of the context's end while another records a
// graph, leaves a step that can only be aborted.
func (s *Step) Attend(ctx context.Context, layer int, io IO) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(layer, io); err != nil {
		return fmt.Errorf("serve: attend layer %d: %w", layer, err)
	}
	if !s.recorded {
		if err := s.engine.enter(ctx, beside); err != nil {
			return fmt.Errorf("serve: attend layer %d: %w", layer, err)
		}
		defer s.engine.leave(beside)
	}
	if err := s.launch(layer, io); err != nil {
		s.fail(fmt.Errorf("serve: attend layer %d: %w", layer, launchError(err)))
		return s.err
	}
	s.attended[layer] = true
	return nil
}

func (s *Step) check(layer int, io IO) error {
	switch {
	case s.ended:
		return ErrEnded
	case s.err != nil:
		return s.err
	case s.graph != nil && !s.recorded:
		return fmt.Errorf("a step of a graph is launched with Launch")
	case layer < 0 || layer >= len(s.attended):
		return fmt.Errorf("the model has layers 0 to %d", len(s.attended)-1)
	}
	return io.check(&s.engine.model)
}

func (s *Step) launch(layer int, io IO) error {
	e := s.engine
	m := &e.model
	kv := e.cache.Layer(layer)
	stride := func(given, heads, dim int) int32 {
		if given != 0 {
			return int32(given)
		}
		return int32(heads * dim)
	}
	qStride, outStride := stride(io.QStride, m.queryHeads(), m.HeadDim), stride(io.OutStride, m.queryHeads(), m.VHeadDim)

	p := s.append
	p.K, p.V, p.KCache, p.VCache = io.K, io.V, kv.K, kv.V
	p.KTokenStride, p.VTokenStride = stride(io.KStride, m.KVHeads, m.HeadDim), stride(io.VStride, m.KVHeads, m.VHeadDim)
	if err := e.kernels.Append(s.lane, p); err != nil {
		return err
	}
	attend := func(stream cuda.Stream, l *launch) error {
		p := l.params
		p.Q, p.Out, p.LSE, p.SinkLogits = io.Q, io.Out, io.LSE, io.SinkLogits
		p.KCache, p.VCache = kv.K, kv.V
		if len(e.maps) > 0 {
			maps := e.maps[layer][l.route]
			p.KMap, p.VMap = maps.K, maps.V
		}
		if l.rotate.CopyCount > 0 {
			rotate := l.rotate
			rotate.SrcK = kv.K
			if err := e.routes.rotator.Materialise(stream, rotate); err != nil {
				return err
			}
			p.KCache, p.KMap = l.params.KCache, l.params.KMap
		}
		p.QTokenStride, p.OutTokenStride = qStride, outStride
		return e.launch(stream, &e.routes.all[l.route], p)
	}
	if len(s.launches) > 1 { // side by side, so that blocks of one begin where those of another end
		everySecond := func(from int) func(cuda.Stream) error {
			return func(stream cuda.Stream) error {
				for i := from; i < len(s.launches); i += 2 {
					if err := attend(stream, s.launches[i]); err != nil {
						return err
					}
				}
				return nil
			}
		}
		if err := e.side.Both(s.lane, everySecond(0), everySecond(1)); err != nil {
			return err
		}
	} else if len(s.launches) == 1 {
		if err := attend(s.lane, s.launches[0]); err != nil {
			return err
		}
	}
	for i := range s.attend {
		if m := s.attend[i].merge; m.Tokens > 0 {
			m.Out, m.LSE, m.SinkLogits, m.OutTokenStride = io.Out, io.LSE, io.SinkLogits, outStride
			if err := e.kernels.Merge(s.lane, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// Launch queues the work of a step that was scheduled for a graph. Where another graph is
// being recorded it waits for that, for as long as the context lasts.
func (s *Step) Launch(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.recorded:
		return fmt.Errorf("serve: launch: %w", errRecorded)
	case s.ended:
		return fmt.Errorf("serve: launch: %w", ErrEnded)
	case s.err != nil:
		return s.err
	case s.graph == nil:
		return fmt.Errorf("serve: launch: the step is not of a graph; attend it layer by layer")
	}
	if err := s.engine.enter(ctx, beside); err != nil {
		return fmt.Errorf("serve: launch: %w", err)
	}
	defer s.engine.leave(beside)
	if err := s.graph.recorded.Launch(s.lane); err != nil {
		s.fail(fmt.Errorf("serve: launch: %w", launchError(err)))
		return s.err
	}
	for i := range s.attended {
		s.attended[i] = true
	}
	return nil
}

// Wait waits until the work that is queued on the stream is done. What went wrong with
// the step's own is its error; so is what went wrong on the stream and was nobody's: the
// server's own work, and that of steps that were committed before it was done. On a device
// without lanes (cuda.LaneDevice) the work of all steps is that of the stream.
func (s *Step) Wait(ctx context.Context) error {
	if err := s.waitable(); err != nil {
		return fmt.Errorf("serve: wait: %w", err)
	}
	streams := []cuda.Stream{s.lane}
	if s.lane != s.stream {
		streams = append(streams, s.stream)
	}
	err := s.engine.wait(ctx, streams...) // without mu, which Abort wants
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return fmt.Errorf("serve: wait: %w", ErrEnded)
	case err == nil:
		return s.err
	case ctx.Err() != nil, errors.Is(err, ErrClosed):
		return fmt.Errorf("serve: wait: %w", err)
	}
	s.fail(fmt.Errorf("serve: wait: %w", launchError(err)))
	return s.err
}

func (s *Step) waitable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.recorded:
		return errRecorded
	case s.ended:
		return ErrEnded
	}
	return nil
}

// fail makes the step one that can only be aborted.
func (s *Step) fail(err error) {
	if s.err == nil {
		s.err = err
		s.engine.metrics.failed.Inc()
		s.engine.log.Error("step failed", "sequences", len(s.entries), "tokens", s.tokens, "error", err)
	}
}

// Commit ends the step: the new tokens are part of their sequences. It waits
// for nothing. Where a layer is missing, a launch failed or the engine is
// closed, it aborts the step and says so.
func (s *Step) Commit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.recorded:
		return fmt.Errorf("serve: commit: %w", errRecorded)
	case s.ended:
		return fmt.Errorf("serve: commit: %w", ErrEnded)
	}
	err := s.err
	if err == nil && s.engine.isClosed() {
		err = fmt.Errorf("serve: commit: %w", ErrClosed)
	}
	for layer := 0; err == nil && layer < len(s.attended); layer++ {
		if !s.attended[layer] {
			err = fmt.Errorf("serve: commit: %w: layer %d of %d was not attended", ErrIncomplete, layer, len(s.attended))
		}
	}
	if err != nil {
		s.abort()
		return err
	}
	m := s.engine.metrics
	m.steps.Observe(time.Since(s.start).Seconds())
	m.tokens.Add(float64(s.tokens))
	m.reads.Add(float64(s.reads))
	m.shared.Add(float64(s.shared))
	m.spared.Add(float64(s.Spared()))
	s.end(true)
	return nil
}

// Abort ends the step and takes the new tokens away again. Once the step has
// ended it does nothing.
func (s *Step) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && !s.recorded {
		s.abort()
	}
}

func (s *Step) abort() {
	s.engine.metrics.aborted.Inc()
	s.rollBack()
}

// rollBack takes the new tokens away and ends the step. Work that is queued may
// still write them: whoever gets their pages queues behind it.
func (s *Step) rollBack() {
	if s.extended {
		for _, entry := range s.entries {
			kv := entry.Sequence.kv
			// It fails only where the engine is closed, and then there is nothing to keep.
			_ = kv.Truncate(kv.Tokens() - entry.Tokens)
		}
	}
	s.end(false)
}

// openLane is called once, ahead of whatever the step launches.
func (s *Step) openLane() (err error) {
	s.lane = s.stream
	if lanes, ok := s.engine.device.(cuda.LaneDevice); ok {
		s.lane, err = lanes.NewLane(s.stream)
	}
	return err
}

// end ends the step. What is still to go wrong with its work is of interest to those that
// come after it, where it was committed.
func (s *Step) end(committed bool) {
	s.ended = true
	if lanes, ok := s.engine.device.(cuda.LaneDevice); ok {
		lanes.EndLane(s.lane, committed)
	}
	for _, entry := range s.entries {
		entry.Sequence.unclaim()
	}
	if s.space != nil {
		s.engine.giveSpace(s.space)
	}
	if s.graph != nil {
		s.graph.busy.Store(false)
	}
}
