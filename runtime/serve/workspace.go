package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// workspace is the memory of one step: its lists, built on the host and copied
// to the device in one piece, and its partial results. It is kept from step to
// step, so that a step allocates only what is larger than all before it. On the
// device, the step before may still be at work in it: the stream has the copy
// behind that.
type workspace struct {
	table     *table // of the step: one of the two
	decoding  table  // of steps that have sequences in decode, each mostly as the one before
	prompts   table  // of other steps, which may come between those
	batch     []kvcache.Extension
	groups    [groupCount]group
	positions []int32    // of query tokens
	stored    []int32    // positions that K is stored at
	slots     []int32    // that K and V are written to
	host      hostBuffer // the lists as the device gets them
	passes    uint64     // times that they were put there
	lists     buffer
	partials  buffer
	counter   [2]uint32    // zeros, which each launch's counter is before and after
	used      bool         // the copy from host may be under way
	copied    cuda.Event   // that it is over; 0: none was made
	marked    bool         // copied is of the last copy
	fixed     *fixedSize   // nil: sizes and addresses follow the step
	device    *deviceLists // nil: the host makes the lists
}

type table struct {
	kvcache.Table
	packed packed
}

// The groups of a step: decode's, and one for each kernel of extend, or prefill's.
const (
	decodeGroup = 0
	groupCount  = decodeGroup + 1 + mostChoices
)

// group is the sequences of one route in a step.
type group struct {
	route     int // index in an engine's routes
	builder   schedule.Builder
	sharing   schedule.SharedBuilder // in builder's place, of decode where there is shared decode
	sequences []schedule.Sequence
	lists     schedule.Lists
	runs      packed
	rotated   rotated
	shared    schedule.SharedLists // those of shared decode, whose Decode is lists
}

// fixedSize is the capacity of a workspace whose addresses a graph knows.
type fixedSize struct {
	tokens, segments, context, slotBegins, items, runs, pages, slots int
	shared                                                           fixedShared
}

func (w *workspace) release(dev cuda.Device) error {
	err := errors.Join(w.host.release(dev), w.lists.release(dev), w.partials.release(dev))
	if w.device != nil {
		err = errors.Join(err, w.device.release(dev))
	}
	for i := range w.groups {
		err = errors.Join(err, w.groups[i].rotated.release(dev))
	}
	if w.copied != 0 {
		err = errors.Join(err, dev.(cuda.EventDevice).DestroyEvent(w.copied))
		w.copied = 0
	}
	return err
}

// takeSpace returns a workspace whose lists may be written.
func (e *Engine) takeSpace(ctx context.Context) (*workspace, error) {
	e.mu.Lock()
	var w *workspace
	if n := len(e.free); n > 0 {
		w, e.free = e.free[n-1], e.free[:n-1]
	} else {
		w = &workspace{}
		e.spaces[w] = struct{}{}
	}
	e.mu.Unlock()
	if err := w.settle(ctx, e); err != nil {
		e.giveSpace(w)
		return nil, err
	}
	return w, nil
}

func (e *Engine) giveSpace(w *workspace) {
	if w.fixed != nil {
		return // its graph has it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.free = append(e.free, w)
}

// settle waits until the lists have been copied to the device. Where the device
// has no events, it waits for all work on the stream.
func (w *workspace) settle(ctx context.Context, e *Engine) error {
	if !w.used {
		return nil
	}
	var err error
	if w.marked {
		err = e.device.(cuda.EventDevice).WaitEvent(ctx, w.copied)
	} else {
		err = e.device.Synchronize(ctx, e.stream)
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	w.used = false // whatever went wrong has ended
	if w.device != nil {
		w.device.answered(e)
	}
	return launchError(err)
}

// reset empties the workspace for a step that has sequences in decode or none.
func (w *workspace) reset(decodes bool) {
	w.table = &w.prompts
	if decodes {
		w.table = &w.decoding
	}
	for i := range w.groups {
		g := &w.groups[i]
		g.sequences, g.lists, g.shared = g.sequences[:0], schedule.Lists{}, schedule.SharedLists{}
		g.rotated.lists.Copies = g.rotated.lists.Copies[:0]
	}
	w.positions, w.stored, w.slots = w.positions[:0], w.stored[:0], w.slots[:0]
}

// add appends query tokens of a sequence to a group: at positions from first on, with K
// stored at positions from stored on.
func (w *workspace) add(g *group, tokens, first, stored int, of *kvcache.Extended) {
	query := len(w.positions)
	for i := range tokens {
		w.positions = append(w.positions, int32(first+i))
		w.stored = append(w.stored, int32(stored+i))
	}
	// Where positions grow later, these stay in the memory that they had.
	n := len(g.sequences)
	g.sequences = slices.Grow(g.sequences, 1)[:n+1]
	s := &g.sequences[n]
	s.QueryBegin, s.Positions, s.Segments, s.Layout, s.Placed = int32(query), w.positions[query:], of.Segments, of.Layout, of.Placed
}

// build makes the lists of the groups.
func (w *workspace) build(e *Engine) error {
	if w.device != nil {
		return w.device.list(w.groups[decodeGroup].sequences, w.decodeOptions(e), w.fixed)
	}
	for i := range w.groups {
		g := &w.groups[i]
		o := e.routes.all[g.route].schedule
		if w.fixed != nil && i == decodeGroup {
			o = w.decodeOptions(e)
		} else if len(g.sequences) == 0 {
			continue
		}
		var err error
		if i == decodeGroup && w.shares(e) {
			g.shared, err = g.sharing.Build(g.sequences, o, w.sharingOptions(e))
			g.lists = g.shared.Decode
		} else {
			var sequences []schedule.Sequence
			if sequences, err = g.rotated.list(e, g.route, g.sequences, w.table.Pages); err == nil {
				g.lists, err = g.builder.Build(sequences, o)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decodeOptions are those of a graph's decode.
func (w *workspace) decodeOptions(e *Engine) schedule.Options {
	o := e.routes.all[w.groups[decodeGroup].route].schedule
	o.PadItems, o.PadTokens = w.fixed.items, w.fixed.tokens
	return o
}

// sharingOptions are those of steps that have shared decode.
func (w *workspace) sharingOptions(e *Engine) schedule.SharedOptions {
	s := *e.sharing
	if w.fixed != nil {
		s.PadItems, s.MaxMembers = w.fixed.shared.items, w.fixed.shared.members
	}
	return s
}

// sizes are how much of a group's lists launches take.
type sizes struct {
	items, runs             int
	sharedItems, sharedRuns int
	merged                  int // query tokens
}

// sizes of a group: of a graph what there is room for, as it is for all of its steps.
func (w *workspace) sizes(group int) sizes {
	if w.fixed != nil {
		f := w.fixed
		if group != decodeGroup {
			return sizes{}
		}
		return sizes{f.items, f.runs, f.shared.items, f.shared.runs, f.tokens}
	}
	g := &w.groups[group]
	n := sizes{items: len(g.lists.Items), runs: len(g.lists.Runs)}
	if g.lists.Merged() > 0 {
		n.sharedItems, n.sharedRuns, n.merged = len(g.shared.Items), len(g.shared.Runs), len(g.lists.SlotBegin)-1
	}
	return n
}

// addresses are where a step's lists and partial results are on the device.
type addresses struct {
	positions, stored, slots, table abi.DevicePtr
	groups                          [groupCount]groupAddresses
	shared                          sharedAddresses
}

type sharedAddresses struct {
	items, runs, members, offsets, counter abi.DevicePtr
}

type groupAddresses struct {
	items, runs, slotBegin abi.DevicePtr
	counter                abi.DevicePtr
	partialOut, partialLSE abi.DevicePtr
	pages, copies          abi.DevicePtr // of keys that are rotated ahead
}

// upload copies the lists to the device. Lists of a fixed size stay where they
// are from step to step.
func (w *workspace) upload(ctx context.Context, e *Engine) (addresses, error) {
	var a addresses
	w.passes++
	p := packer{host: &w.host, pass: w.passes, device: e.device}
	w.host.data = w.host.data[:0]
	f := w.fixed
	if f == nil {
		f = &fixedSize{}
	}
	for len(w.slots) < f.tokens {
		w.slots = append(w.slots, -1) // append writes nothing for padding
	}
	a.positions = pack(&p, w.positions, f.tokens, "Tokens")
	a.stored = pack(&p, w.stored, f.tokens, "Tokens")
	a.slots = pack(&p, w.slots, f.tokens, "Tokens")
	if w.device != nil {
		w.device.pack(&p, f)
		a.groups[decodeGroup].counter, a.shared.counter = pack(&p, w.counter[:], 0, ""), pack(&p, w.counter[:], 0, "")
	}
	for i := range w.groups {
		g, l := &w.groups[i], &w.groups[i].lists
		if len(l.Items) == 0 {
			continue
		}
		a.groups[i].slotBegin = pack(&p, l.SlotBegin, f.slotBegins, "Tokens")
		a.groups[i].items = pack(&p, l.Items, f.items, "Context")
		a.groups[i].runs = packChanged(&p, &g.runs, l.Number, l.Runs, l.Changed, f.runs, "Segments")
		a.groups[i].counter = pack(&p, w.counter[:], 0, "")
		if ahead := &g.rotated.lists; len(ahead.Copies) > 0 {
			a.groups[i].pages, a.groups[i].copies = pack(&p, ahead.Pages, 0, ""), pack(&p, ahead.Copies, 0, "")
		}
	}
	shared := &w.groups[decodeGroup].shared
	if len(shared.Items) > 0 {
		a.shared.items = pack(&p, shared.Items, f.shared.items, "Segments")
		a.shared.runs = pack(&p, shared.Runs, f.shared.runs, "Segments")
		a.shared.members = pack(&p, shared.Members, f.shared.members, "Segments")
		a.shared.offsets = pack(&p, shared.Offsets, f.shared.offsets, "Segments")
		a.shared.counter = pack(&p, w.counter[:], 0, "")
	}
	t := w.table
	a.table = packChanged(&p, &t.packed, t.Number, t.Pages, t.Changed, f.pages, "Pages") // last: the rest of its capacity is not copied
	if p.err != nil {
		return a, p.err
	}
	if err := w.lists.grow(ctx, e, int64(p.end), w.fixed == nil); err != nil {
		return a, fmt.Errorf("work lists: %w", err)
	}
	if err := w.placePartials(ctx, &a, e); err != nil {
		return a, err
	}
	for i := range w.groups {
		if g := &w.groups[i]; len(g.rotated.lists.Copies) > 0 {
			if err := g.rotated.place(ctx, e, g.route); err != nil {
				return a, err
			}
		}
	}
	for _, ptr := range []*abi.DevicePtr{
		&a.positions, &a.stored, &a.slots, &a.table,
		&a.shared.items, &a.shared.runs, &a.shared.members, &a.shared.offsets, &a.shared.counter,
	} {
		*ptr += w.lists.ptr
	}
	for i := range a.groups {
		g := &a.groups[i]
		g.items, g.runs, g.slotBegin, g.counter = g.items+w.lists.ptr, g.runs+w.lists.ptr, g.slotBegin+w.lists.ptr, g.counter+w.lists.ptr
		g.pages, g.copies = g.pages+w.lists.ptr, g.copies+w.lists.ptr
	}
	if w.device != nil {
		if err := w.device.place(ctx, e, w, &a); err != nil {
			return a, fmt.Errorf("work lists: %w", err)
		}
		if err := w.device.ask(e); err != nil {
			return a, fmt.Errorf("work lists: %w", launchError(err))
		}
	}
	w.used, w.marked = true, false
	if err := w.host.upload(e.device, e.stream, w.lists.ptr); err != nil {
		return a, fmt.Errorf("work lists: %w", launchError(err))
	}
	if err := w.mark(e); err != nil {
		return a, fmt.Errorf("work lists: %w", launchError(err))
	}
	return a, nil
}

// mark records that the copy is over when the stream gets here.
func (w *workspace) mark(e *Engine) (err error) {
	events, ok := e.device.(cuda.EventDevice)
	if !ok {
		return nil
	}
	if w.copied == 0 {
		if w.copied, err = events.NewEvent(); err != nil {
			return err
		}
	}
	if err := events.Record(w.copied, e.stream); err != nil {
		return err
	}
	w.marked = true
	return nil
}

// placePartials makes room for partial results, one group's behind the other's.
func (w *workspace) placePartials(ctx context.Context, a *addresses, e *Engine) error {
	slots := 0
	for i := range w.groups {
		slots += w.groups[i].lists.Slots
	}
	if w.fixed != nil {
		if slots > w.fixed.slots {
			return fmt.Errorf("%w: %d partial results, there is room for %d", ErrFixedSize, slots, w.fixed.slots)
		}
		slots = w.fixed.slots
	}
	heads := int64(e.model.queryHeads())
	out := heads * int64(e.model.VHeadDim) * 4 // bytes a slot
	if err := w.partials.grow(ctx, e, int64(slots)*(out+heads*4), w.fixed == nil); err != nil {
		return fmt.Errorf("partial results: %w", err)
	}
	first := abi.DevicePtr(0)
	for i := range w.groups {
		if w.groups[i].lists.Slots == 0 && w.fixed == nil {
			continue // its address could be the end of the memory, which is in none
		}
		a.groups[i].partialOut = w.partials.ptr + first*abi.DevicePtr(out)
		a.groups[i].partialLSE = w.partials.ptr + abi.DevicePtr(slots)*abi.DevicePtr(out) + first*abi.DevicePtr(heads*4)
		first += abi.DevicePtr(w.groups[i].lists.Slots)
	}
	return nil
}
