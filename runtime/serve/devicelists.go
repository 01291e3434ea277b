package serve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Lists says who makes the work lists of a graph's steps.
type Lists string

const (
	// ListsByHost is the host, in Schedule, while the device is at work at the step before.
	ListsByHost Lists = ""
	// ListsByDevice is the kernel schedule, which the graph begins with: Schedule tells it what the sequences hold.
	ListsByDevice Lists = "device"
)

// lister is Kernels of which one makes the work lists of decode.
type lister interface {
	Schedule(s cuda.Stream, p abi.ScheduleParams) error
}

// deviceLists is how the device makes a graph's lists. What it is given is in the workspace's
// lists, what it makes in memory of its own.
type deviceLists struct {
	given    schedule.Given
	segments packed // of given
	made     buffer
	params   abi.ScheduleParams

	// Of the tokens that were spared, which the device adds up.
	spared int64 // so many are counted
	steps  int
	answer hostBuffer
	asked  bool
}

// deviceLists is for a graph; nil where the host makes its lists.
func (e *Engine) deviceLists(by Lists, fixed *fixedSize) (*deviceLists, error) {
	switch by {
	case ListsByHost:
		return nil, nil
	case ListsByDevice:
		if err := e.canList(fixed); err != nil {
			return nil, fmt.Errorf("work lists by the device: %w", err)
		}
		return &deviceLists{}, nil
	}
	return nil, fmt.Errorf("GraphSize.Lists is %q: want %q, which is what nothing means, or %q", by, ListsByHost, ListsByDevice)
}

// canList says why the device can't make a graph's lists.
func (e *Engine) canList(fixed *fixedSize) error {
	if _, ok := e.kernels.(lister); !ok {
		return errors.New("the kernels have no method Schedule")
	}
	if a, ok := e.kernels.(artifacts); ok {
		if _, ok := a.Artifact(abi.KindSchedule); !ok {
			return fmt.Errorf("the kernels have no %s: add it to the kernels of the spec", abi.KindSchedule)
		}
	}
	if fixed.shared.items > 0 && e.sharing.Bitwise && fixed.context == 0 {
		return errors.New("with sharing bitwise the graph's size needs a Context")
	}
	o := e.routes.options(decode)
	return o.OnDevice()
}

// list lists what the sequences hold, for which there must be room.
func (d *deviceLists) list(sequences []schedule.Sequence, o schedule.Options, f *fixedSize) error {
	needs, err := d.given.List(sequences, o)
	if err != nil {
		return err
	}
	for _, room := range [...]struct {
		what    string
		n, most int
		field   string
	}{
		{"query tokens", needs.Queries, f.tokens, "Tokens"},
		{"segments, once for each query token", needs.Pairs, f.segments, "Segments"},
		{"partial results", needs.Results, f.items, "Context"},
		{"tokens of a sequence", needs.Longest, f.context, "Context"},
	} {
		if room.n > room.most && (room.most > 0 || room.field != "Context") {
			return fmt.Errorf("%w: %d %s, there is room for %d: raise GraphSize.%s", ErrFixedSize, room.n, room.what, room.most, room.field)
		}
	}
	return nil
}

// pack packs what the device is given; until place, params has places in the workspace's lists for it.
func (d *deviceLists) pack(p *packer, f *fixedSize) {
	g := &d.given
	d.params.Counts = pack(p, []int32{int32(len(g.Sequences)), int32(len(g.Segments))}, 0, "")
	d.params.Sequences = pack(p, g.Sequences, f.tokens, "Tokens")
	d.params.Segments = packChanged(p, &d.segments, g.Number, g.Segments, g.Changed, f.segments, "Segments")
}

// place makes room for the lists, the first time, and says where all is.
func (d *deviceLists) place(ctx context.Context, e *Engine, w *workspace, a *addresses) error {
	f := w.fixed
	o, given := w.decodeOptions(e), d.params
	var sharing *schedule.SharedOptions
	if w.shares(e) {
		s := w.sharingOptions(e)
		sharing = &s
	}
	d.params = o.Params(sharing)
	p := &d.params
	p.Counts, p.Sequences, p.Segments = given.Counts+w.lists.ptr, given.Sequences+w.lists.ptr, given.Segments+w.lists.ptr
	p.SequenceRoom, p.SegmentRoom, p.PartRoom = int32(f.tokens), int32(f.segments), int32(max(1, f.items/f.tokens))

	lists := []struct {
		at    *abi.DevicePtr
		bytes int
	}{
		{&p.Spared, 8},
		{&p.Items, f.items * int(unsafe.Sizeof(abi.Item{}))},
		{&p.Runs, f.runs * int(unsafe.Sizeof(abi.Run{}))},
		{&p.SlotBegin, f.slotBegins * 4},
		{&p.Scratch, p.ScratchWords() * 4},
		{&p.SharedItems, f.shared.items * int(unsafe.Sizeof(abi.Item{}))},
		{&p.SharedRuns, f.shared.runs * int(unsafe.Sizeof(abi.Run{}))},
		{&p.Members, f.shared.members * int(unsafe.Sizeof(abi.Member{}))},
		{&p.MemberOffsets, f.shared.offsets * 4},
	}
	if sharing == nil {
		lists = lists[:5]
	}
	end := 0
	for _, l := range lists {
		*l.at = abi.DevicePtr(end)
		end = (end + l.bytes + listAlignment - 1) / listAlignment * listAlignment
	}
	if d.made.bytes == 0 {
		if err := d.made.grow(ctx, e, int64(end), false); err != nil {
			return err
		}
		if err := e.device.Fill(e.stream, d.made.ptr, 0, d.made.bytes); err != nil {
			return launchError(err)
		}
	}
	for _, l := range lists {
		*l.at += d.made.ptr
	}
	g := &a.groups[decodeGroup]
	g.items, g.runs, g.slotBegin = p.Items, p.Runs, p.SlotBegin
	a.shared.items, a.shared.runs, a.shared.members, a.shared.offsets = p.SharedItems, p.SharedRuns, p.Members, p.MemberOffsets
	return nil
}

// launch queues the kernel, and behind it something that is not launched early: kernels behind it read their
// lists before they wait for what is ahead.
func (d *deviceLists) launch(e *Engine, stream cuda.Stream) error {
	if err := e.kernels.(lister).Schedule(stream, d.params); err != nil {
		return err
	}
	return e.device.Fill(stream, d.params.Scratch, 0, 4)
}

// sparedEvery is the steps after which the host asks how many tokens were spared: what it gets is of the steps before.
const sparedEvery = 16

// ask queues a copy of what the device has added up, ahead of a copy that settle waits for.
func (d *deviceLists) ask(e *Engine) error {
	copier, ok := e.device.(cuda.Copier)
	if d.steps++; !ok || d.params.Spared == 0 || d.steps%sparedEvery != 0 {
		return nil
	}
	if err := d.answer.grow(e.device, 8); err != nil {
		return err
	}
	d.answer.data = d.answer.data[:8]
	d.asked = true
	return copier.CopyToHostAsync(e.stream, d.answer.data, d.params.Spared, cuda.Blocks{Bytes: 8, Stride: 8, Count: 1})
}

// answered takes the answer, once settle has waited for it.
func (d *deviceLists) answered(e *Engine) {
	if d.asked {
		d.asked = false
		d.count(e, d.answer.data)
	}
}

// last counts the rest, when the graph's work is done.
func (d *deviceLists) last(e *Engine) error {
	var sum [8]byte
	if d.params.Spared == 0 {
		return nil
	}
	if err := e.device.Download(sum[:], d.params.Spared); err != nil {
		return err
	}
	d.count(e, sum[:])
	return nil
}

func (d *deviceLists) count(e *Engine, sum []byte) {
	tokens := int64(binary.LittleEndian.Uint64(sum))
	e.metrics.spared.Add(float64(e.model.keptBytes() * (tokens - d.spared)))
	d.spared = tokens
}

func (d *deviceLists) release(dev cuda.Device) error {
	return errors.Join(d.made.release(dev), d.answer.release(dev))
}
