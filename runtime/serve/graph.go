package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
)

// ErrNoGraphs is a device that can't record launches.
var ErrNoGraphs = errors.New("the device records no graphs")

// GraphSize is the size of the steps that a graph can replay. Every replay
// takes the grids of the largest.
type GraphSize struct {
	Tokens   int   // query tokens of a step, of all sequences together
	Context  int   // tokens that a sequence holds, chunks and own tokens; 0: no limit
	Segments int   // segments of all sequences together, once for each new token of theirs; 0: 32 for each token
	Pages    int   // of the page table, a chunk's counted once; 0: as many as the pool has and half as many again
	Lists    Lists // who makes the work lists: the host, or the device
}

// errRecorded is what the steps that Capture records are not made for.
var errRecorded = errors.New("the step of a capture can only be attended")

// Graph is a recorded decode step. It is replayed for batch after batch of
// sequences, which may be others each time, and longer: [Graph.Schedule] puts
// the work lists of a batch where the graph reads them. It replays the tensor
// addresses that it was recorded with. Its methods may be called from any goroutine.
type Graph struct {
	engine   *Engine
	space    *workspace
	stream   cuda.Stream // that it was recorded on
	recorded cuda.Graph
	busy     atomic.Bool // in an open step, or somebody looks at closed
	closed   bool        // guarded by busy
}

// Capture records a decode step of the size. record must attend every layer of
// the step, and may launch other work of the forward step on the step's stream,
// which is not the engine's; nothing runs yet. It must not allocate, copy or
// wait, and must launch from the goroutine it is called on. Calls of the engine that
// queue work wait for it meanwhile, as it first waits for theirs, until their context
// ends; so it must make none. [Step.Wait] does not.
func (e *Engine) Capture(ctx context.Context, size GraphSize, record func(s *Step) error) (_ *Graph, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("serve: capture: %w", err)
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dev, ok := e.device.(cuda.GraphDevice)
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNoGraphs, e.device.Info().Name)
	}
	fixed, err := e.fixedSize(size)
	if err != nil {
		return nil, err
	}
	if err := e.enter(ctx, alone); err != nil {
		return nil, err
	}
	defer e.leave(alone)
	device, err := e.deviceLists(size.Lists, fixed)
	if err != nil {
		return nil, err
	}
	g := &Graph{engine: e, space: &workspace{fixed: fixed, device: device}}
	kept := false
	s := &Step{engine: e, graph: g, space: g.space, recorded: true}
	defer func() {
		s.ended = true
		if !kept { // also where record panics; the copy of its lists may be under way
			err = errors.Join(err, g.space.settle(context.WithoutCancel(ctx), e), g.destroy())
		}
	}()
	if g.stream, err = dev.NewStream(); err != nil {
		return nil, err
	}
	s.stream, s.lane = g.stream, g.stream // what is recorded is replayed on others
	g.space.reset(true)
	g.space.groups[decodeGroup].route = e.routes.first[decode]
	if err := s.place(ctx); err != nil {
		return nil, err
	}
	s.tokens = fixed.tokens
	recorded, err := dev.Capture(g.stream, func() error {
		if device != nil {
			if err := device.launch(e, g.stream); err != nil {
				return launchError(err)
			}
		}
		return record(s)
	})
	if err != nil {
		return nil, err
	}
	g.recorded = recorded
	for layer, attended := range s.attended {
		if !attended {
			return nil, fmt.Errorf("%w: layer %d of %d was not attended", ErrIncomplete, layer, len(s.attended))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.graphs[g] = struct{}{}
	kept = true
	e.log.Info("graph recorded", "tokens", fixed.tokens, "items", fixed.items, "runs", fixed.runs, "pages", fixed.pages)
	return g, nil
}

// fixedSize is what steps of the size need at most. A sequence takes at most
// MaxItems items, as many partial slots a token, and a run for each segment,
// each cut, and each gap of a window.
func (e *Engine) fixedSize(size GraphSize) (*fixedSize, error) {
	if size.Segments == 0 {
		size.Segments = 32 * size.Tokens
	}
	if size.Pages == 0 {
		pages := e.cache.Config().Pages
		size.Pages = pages + pages/2
	}
	if size.Tokens < 1 || size.Context < 0 || size.Segments < 1 || size.Pages < 1 || max(size.Tokens, size.Context, size.Segments, size.Pages) > math.MaxInt32 {
		return nil, fmt.Errorf("a graph of %d tokens, context %d, %d segments, %d pages: want positive numbers up to %d",
			size.Tokens, size.Context, size.Segments, size.Pages, math.MaxInt32)
	}
	o := e.routes.options(decode)
	items := o.MaxItems
	if size.Context > 0 {
		items = min(items, (size.Context+o.SplitTokens-1)/o.SplitTokens)
	}
	items *= size.Tokens
	runs := size.Segments
	if e.model.Window > 0 {
		runs *= 2
	}
	shared := e.fixedShared(size)
	f := &fixedSize{
		tokens: size.Tokens, segments: size.Segments, context: size.Context, slotBegins: size.Tokens + 1, items: items, runs: runs + items,
		pages: size.Pages + size.Tokens*kvcache.OwnRoom,
		slots: items + shared.members, shared: shared,
	}
	if most := max(f.slotBegins, f.runs, f.pages, f.slots, shared.items, shared.runs); most > math.MaxInt32 {
		return nil, fmt.Errorf("a graph of %d tokens, context %d, %d segments, %d pages: a list of %d, want at most %d",
			size.Tokens, size.Context, size.Segments, size.Pages, most, math.MaxInt32)
	}
	return f, nil
}

// Schedule makes a step of a batch for [Step.Launch], in the way of
// [Engine.Schedule]. A batch that is larger than the graph's size gives
// [ErrFixedSize]; one that has an entry of more tokens than decode takes, too.
// A graph is in one step at a time.
func (g *Graph) Schedule(ctx context.Context, batch []Entry) (*Step, error) {
	if !g.busy.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("serve: schedule for a graph: the graph: %w", ErrBusy)
	}
	if g.closed {
		g.busy.Store(false)
		return nil, fmt.Errorf("serve: schedule for a graph: %w", ErrClosed)
	}
	s, err := g.engine.schedule(ctx, batch, g)
	if err != nil {
		g.busy.Store(false)
	}
	return s, err
}

// Close gives up the graph's memory, when its work is done. A second call does
// nothing.
func (g *Graph) Close(ctx context.Context) error {
	if !g.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("serve: close a graph: the graph: %w", ErrBusy)
	}
	defer g.busy.Store(false)
	if g.closed {
		return nil
	}
	e := g.engine
	if err := e.wait(ctx, e.stream); err != nil {
		return fmt.Errorf("serve: close a graph: %w", launchError(err))
	}
	if err := e.enter(ctx, beside); err != nil {
		return fmt.Errorf("serve: close a graph: %w", err)
	}
	defer e.leave(beside)
	if d := g.space.device; d != nil {
		if err := d.last(e); err != nil {
			return fmt.Errorf("serve: close a graph: %w", launchError(err))
		}
	}
	g.closed = true
	e.mu.Lock()
	delete(e.graphs, g)
	e.mu.Unlock()
	if err := g.destroy(); err != nil {
		return fmt.Errorf("serve: close a graph: %w", err)
	}
	return nil
}

// destroy frees what the graph holds on the device.
func (g *Graph) destroy() error {
	var errs []error
	if g.recorded != nil {
		errs = append(errs, g.recorded.Destroy())
	}
	errs = append(errs, g.space.release(g.engine.device))
	if g.stream != 0 {
		errs = append(errs, g.engine.device.DestroyStream(g.stream))
	}
	return errors.Join(errs...)
}
