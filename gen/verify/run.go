package verify

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// attendRun is one case in one encoding with its inputs on the device.
type attendRun struct {
	bench   *bench
	c       *attendCase
	l       *layout
	e       spec.Encoding
	kernels Kernels
	memory  *arena

	q, k, v, table, positions, sinkLogits *buffer
	out, lse                              *buffer
	queries                               *abi.MergeParams // that is yet to make q; nil where none can, or has

	fixedShares   bool // blocks get no counter to take work by
	partsPerItem  int  // see schedule.Options; for kernels that fold them
	readsPartials bool // before merge, which may use them up

	maps, ownMaps kernel.CacheMaps // of the case's kind, and of decode beside shared_decode
}

func (b *bench) newRun(memory *arena, c *attendCase, l *layout, e spec.Encoding) (*attendRun, error) {
	r := &attendRun{bench: b, c: c, l: l, e: e, kernels: b.kernels[e], memory: memory}
	model := b.spec.Model
	positions := make([]int32, c.tokens)
	for i := range positions {
		positions[i] = math.MinInt32 // of no use to anyone
	}
	for _, s := range l.sequences {
		copy(positions[s.QueryBegin:], s.Positions)
	}
	m := allocations{arena: memory}
	r.q = m.upload("Q", strided(b.format, c.q, c.queryHeads*model.HeadDim, c.qStride))
	r.k = m.upload("K cache", l.k.data)
	r.v = m.upload("V cache", l.v.data)
	r.table = m.upload("page table", l.table)
	r.positions = m.upload("positions", positions)
	if c.sinkLogits != nil {
		r.sinkLogits = m.upload("sink logits", float32s(c.sinkLogits))
	}
	r.out = m.alloc("Out", 2*((c.tokens-1)*c.outStride+c.queryHeads*model.VHeadDim))
	if c.withLSE {
		r.lse = m.alloc("LSE", 4*c.tokens*c.queryHeads)
	}
	r.queries = r.queriesByMerge(&m)
	if m.err != nil {
		return nil, m.err
	}
	return r, r.mapCache()
}

// mapCache makes tensor maps of the caches, where the kernels need them.
func (r *attendRun) mapCache() error {
	mapper, ok := r.kernels.Launcher.(CacheMapper)
	if !ok {
		return nil
	}
	mapFor := func(kind spec.Kind, to *kernel.CacheMaps) error {
		maps, err := mapper.MapCache(abi.Kind(kind), r.k.ptr, r.v.ptr, r.l.k.count(), r.c.kvHeads)
		if err != nil {
			return err
		}
		r.memory.maps = append(r.memory.maps, maps)
		*to = *maps
		return nil
	}
	if r.c.kind == spec.SharedDecode && has(r.bench.spec.Kinds, spec.Decode) {
		if err := mapFor(spec.Decode, &r.ownMaps); err != nil {
			return err
		}
	}
	return mapFor(r.c.kind, &r.maps)
}

// first runs all sequences, with blocks that take work as they get to it.
func (r *attendRun) first(ctx context.Context) (outputs, error) {
	r.partsPerItem = r.c.partGroups(r.bench.spec)[0]
	return r.launch(ctx, r.c.everySequence())
}

// again runs all sequences once more, for the bits of the first time: with shares that are
// fixed, and with parts in other groups where these don't matter.
func (r *attendRun) again(ctx context.Context, first outputs) (outputs, error) {
	groups := r.c.partGroups(r.bench.spec)
	r.fixedShares, r.readsPartials, r.partsPerItem = true, r.c.kind == spec.SharedDecode, groups[1]
	second, err := r.launch(ctx, r.c.everySequence())
	r.fixedShares, r.readsPartials = false, false
	if err != nil {
		return outputs{}, err
	}
	if !bytes.Equal(first.out, second.out) || !bytes.Equal(first.lse, second.lse) {
		if r.kernels.Folds[r.c.kind] {
			return outputs{}, wrongf("two runs gave different bits, with PartsPerItem %d and %d of schedule.Options", groups[0], groups[1])
		}
		return outputs{}, wrongf("two runs gave different bits")
	}
	return second, nil
}

// partGroups are two values of PartsPerItem of schedule.Options, which give the same bits: not the
// same one, where these do not depend on it.
func (c *attendCase) partGroups(s spec.Spec) [2]int {
	rng := rand.New(rand.NewPCG(c.layoutSeed, 2))
	groups := []int{1, 2, 4, 64, 0} // 0: as package schedule chooses, by the step's sequences
	if s.Whole(c.kind) {
		n := groups[rng.IntN(len(groups)-1)]
		return [2]int{n, n}
	}
	i := rng.IntN(len(groups))
	return [2]int{groups[i], groups[(i+1+rng.IntN(len(groups)-1))%len(groups)]}
}

// launch runs some of the sequences.
func (r *attendRun) launch(ctx context.Context, which []int) (outputs, error) {
	w, err := r.newWork(which)
	if err != nil {
		return outputs{}, err
	}
	if err := r.out.poison(); err != nil {
		return outputs{}, err
	}
	if r.lse != nil {
		if err := r.lse.poison(); err != nil {
			return outputs{}, err
		}
	}
	if err := r.makeQueries(); err != nil {
		return outputs{}, err
	}
	if err := r.attend(w); err != nil {
		return outputs{}, err
	}
	var partials []byte
	if r.readsPartials {
		if partials, err = r.partials(ctx, w); err != nil {
			return outputs{}, err
		}
	}
	if err := r.merge(w); err != nil {
		return outputs{}, err
	}
	if err := r.bench.dev.Synchronize(ctx, 0); err != nil {
		return outputs{}, wrongf("run: %w", err)
	}
	if err := w.check(); err != nil {
		return outputs{}, err
	}
	o, err := r.collect(which)
	o.partials = partials
	return o, err
}

// work is the lists of one launch, on the device, and room for its partial results.
type work struct {
	lists sharedLists     // of other kinds than shared_decode, all is in shared
	ahead *schedule.Ahead // nil where keys are rotated as they come, if at all

	items, runs, slotBegin *buffer
	members, offsets       *buffer // nil but for shared_decode
	counter                *buffer // nil with fixed shares
	partialOut, partialLSE *buffer
}

func (r *attendRun) newWork(which []int) (*work, error) {
	c, w := r.c, &work{}
	var err error
	if c.kind == spec.SharedDecode {
		w.lists, err = r.sharedLists(which)
	} else {
		w.lists.shared, w.ahead, err = r.lists(which)
	}
	if err != nil {
		return nil, err
	}
	m, lists := allocations{arena: r.memory}, w.lists.shared
	w.items = m.upload("items", lists.Items)
	w.runs = m.upload("runs", lists.Runs)
	w.slotBegin = m.upload("slot begin", lists.SlotBegin)
	if c.kind == spec.SharedDecode {
		w.members, w.offsets = m.upload("members", w.lists.members), m.upload("member offsets", w.lists.offsets)
	}
	if !r.fixedShares {
		w.counter = m.upload("Counter", make([]uint32, 2))
	}
	w.partialOut = m.alloc("PartialOut", 4*lists.Slots*c.queryHeads*r.bench.spec.Model.VHeadDim)
	w.partialLSE = m.alloc("PartialLSE", 4*lists.Slots*c.queryHeads)
	return w, m.err
}

// attend launches the case's kind, and decode for what shared_decode leaves.
func (r *attendRun) attend(w *work) error {
	c, s := r.c, r.bench.spec
	score, rotated := s.Rope.ScoreFactors(s.Model.HeadDim)
	p := abi.AttendParams{
		Q: r.q.ptr, KCache: r.k.ptr, VCache: r.v.ptr, Out: r.out.ptr, LSE: r.lse.pointer(),
		PartialOut: w.partialOut.ptr, PartialLSE: w.partialLSE.ptr, Items: w.items.ptr, Runs: w.runs.ptr,
		PageTable: r.table.ptr, Positions: r.positions.ptr, Rope: r.bench.rope.pointer(), SinkLogits: r.sinkLogits.pointer(),
		KMap: r.maps.K, VMap: r.maps.V, Members: w.members.pointer(), MemberOffsets: w.offsets.pointer(), Counter: w.counter.pointer(),
		QTokenStride: int32(c.qStride), OutTokenStride: int32(c.outStride),
		KVHeads: int32(c.kvHeads), ItemCount: int32(len(w.lists.shared.Items)),
		Scale: float32(s.Scale * score), RopeScale: float32(rotated),
		RunCount: int32(len(w.lists.shared.Runs)), PageCount: int32(len(r.l.table)),
	}
	if w.ahead != nil && len(w.ahead.Copies) > 0 {
		if err := r.rotateAhead(w.ahead, &p); err != nil {
			return err
		}
	}
	if err := attendKernel(r.kernels, c.kind, p); err != nil {
		return wrongf("launch: %w", err)
	}
	own := w.lists.own
	if len(own.Items) == 0 {
		return nil
	}
	m := allocations{arena: r.memory}
	items, runs := m.upload("items of decode", own.Items), m.upload("runs of decode", own.Runs)
	if m.err != nil {
		return m.err
	}
	p.Members, p.MemberOffsets = 0, 0
	p.RunCount = int32(len(own.Runs))
	p.Items, p.Runs, p.ItemCount, p.KMap, p.VMap = items.ptr, runs.ptr, int32(len(own.Items)), r.ownMaps.K, r.ownMaps.V
	if err := r.kernels.Decode(0, p); err != nil {
		return wrongf("launch decode: %w", err)
	}
	return nil
}

// partials waits for the results of members, which merge may use up, and returns them.
func (r *attendRun) partials(ctx context.Context, w *work) ([]byte, error) {
	if err := r.bench.dev.Synchronize(ctx, 0); err != nil {
		return nil, wrongf("run: %w", err)
	}
	var partials []byte
	for _, b := range []*buffer{w.partialOut, w.partialLSE} {
		data, err := b.download()
		if err != nil {
			return nil, err
		}
		for _, m := range w.lists.members {
			if m.Slot >= 0 {
				n := len(data) / w.lists.shared.Slots
				partials = append(partials, data[n*int(m.Slot):][:n]...)
			}
		}
	}
	return partials, nil
}

// merge launches merge, where there is something for it.
func (r *attendRun) merge(w *work) error {
	if w.lists.shared.Merged() == 0 {
		return nil
	}
	err := r.kernels.Merge(0, abi.MergeParams{
		PartialOut: w.partialOut.ptr, PartialLSE: w.partialLSE.ptr, Out: r.out.ptr, LSE: r.lse.pointer(),
		SlotBegin: w.slotBegin.ptr, SinkLogits: r.sinkLogits.pointer(),
		OutTokenStride: int32(r.c.outStride), QHeads: int32(r.c.queryHeads), Tokens: int32(len(w.lists.shared.SlotBegin) - 1),
	})
	if err != nil {
		return wrongf("launch merge: %w", err)
	}
	return nil
}

// check says that the counter is zero again, and that what merge read was written.
func (w *work) check() error {
	if w.counter != nil {
		if err := w.counter.unchanged(make([]byte, 8)); err != nil {
			return err
		}
	}
	merged := w.lists.shared.Merged()
	for _, partial := range []*buffer{w.partialOut, w.partialLSE} {
		data, err := partial.download()
		if err != nil {
			return err
		}
		if merged == 0 {
			continue
		}
		data = data[:len(data)/w.lists.shared.Slots*merged] // what is behind is the kernel's own
		if i := unwritten(data, 4); i >= 0 {
			return wrongf("%s: element %d of %d was not written", partial.name, i, len(data)/4)
		}
	}
	return nil
}

// lists schedules some of the sequences and puts items that do nothing between
// the others.
func (r *attendRun) lists(which []int) (schedule.Lists, *schedule.Ahead, error) {
	var sequences []schedule.Sequence
	for _, i := range which {
		sequences = append(sequences, r.l.sequences[i])
	}
	var ahead *schedule.Ahead
	if r.kernels.KeysAhead[r.c.kind] {
		ahead = new(schedule.Ahead)
		if err := ahead.List(sequences, r.l.table, r.bench.spec.Cache.PageSize); err != nil {
			return schedule.Lists{}, nil, err
		}
		sequences = ahead.Sequences
	}
	lists, err := schedule.Build(sequences, r.scheduleOptions(r.c.kind))
	lists.Items = append(lists.Items, make([]abi.Item, r.c.padding)...)
	return lists, ahead, err
}

func (r *attendRun) scheduleOptions(kind spec.Kind) schedule.Options {
	c, s := r.c, r.bench.spec
	o := schedule.Options{
		Rows: r.kernels.Tiles[kind].Rows, Group: s.Model.Group(), Causal: s.Masks.Causal,
		Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens, MaxPosition: s.Rope.MaxPosition,
		SplitTokens: c.splitTokens, MaxItems: c.maxItems, PageSize: s.Cache.PageSize,
	}
	if kind == spec.Extend && c.layoutSeed/32%4 == 0 { // whatever the kernel's, as bits are compared with another's; mostly small, for many cuts
		o.Keys = 16 << (c.layoutSeed / 128 % 4)
	}
	if kind == spec.Prefill {
		o.Wave = int(c.layoutSeed / 32 % 4)
	}
	if r.kernels.Folds[kind] {
		o.Fold, o.PartsPerItem, o.Whole = true, r.partsPerItem, s.Whole(kind)
	}
	return o
}

// collect downloads the outputs. The rows of the given sequences must be
// written, and nothing else.
func (r *attendRun) collect(which []int) (outputs, error) {
	c, dim := r.c, r.bench.spec.Model.VHeadDim
	var o outputs
	var err error
	if o.out, err = r.out.download(); err != nil {
		return outputs{}, err
	}
	if r.lse != nil {
		if o.lse, err = r.lse.download(); err != nil {
			return outputs{}, err
		}
	}
	used := make([]bool, c.tokens)
	for _, i := range which {
		for t := range c.sequences[i].positions {
			used[c.sequences[i].queryBegin+t] = true
		}
	}
	for t, used := range used {
		begin, end := 2*t*c.outStride, min(len(o.out), 2*(t+1)*c.outStride)
		row, gap := o.out[begin:begin+2*c.queryHeads*dim], o.out[begin+2*c.queryHeads*dim:end]
		if i := notPoison(gap); i >= 0 {
			return outputs{}, wrongf("Out: query token %d: the gap behind its row was written", t)
		}
		if err := writtenOrNot("Out", row, 2, used, t); err != nil {
			return outputs{}, err
		}
		if o.lse != nil {
			if err := writtenOrNot("LSE", o.lse[4*t*c.queryHeads:][:4*c.queryHeads], 4, used, t); err != nil {
				return outputs{}, err
			}
		}
	}
	if err := r.k.unchanged(r.l.k.data); err != nil {
		return outputs{}, err
	}
	return o, r.v.unchanged(r.l.v.data)
}

func writtenOrNot(name string, row []byte, size int, used bool, token int) error {
	if used {
		if i := unwritten(row, size); i >= 0 {
			return wrongf("%s: query token %d: element %d was not written", name, token, i)
		}
	} else if notPoison(row) >= 0 {
		return wrongf("%s: query token %d, which no sequence has, was written", name, token)
	}
	return nil
}

// unwritten is the index of the first element that is poison still, or -1.
func unwritten(p []byte, size int) int {
	for i := 0; i < len(p); i += size {
		if notPoison(p[i:i+size]) < 0 {
			return i / size
		}
	}
	return -1
}
