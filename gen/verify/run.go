package verify

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/numeric"
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
	m := batch{arena: memory}
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

// twice runs all sequences two times, for the same bits: first with blocks that take
// work as they get to it, then with shares that are fixed, and with parts in other groups.
func (r *attendRun) twice(ctx context.Context) (outputs, error) {
	rng := rand.New(rand.NewPCG(r.c.layoutSeed, 2))
	groups := []int{1, 2, 4, 64, 0} // 0: as package schedule chooses
	i := rng.IntN(len(groups))
	j := (i + 1 + rng.IntN(len(groups)-1)) % len(groups)
	r.partsPerItem = groups[i]
	first, err := r.launch(ctx, r.c.everySequence())
	if err != nil {
		return outputs{}, err
	}
	r.fixedShares, r.readsPartials, r.partsPerItem = true, r.c.kind == spec.SharedDecode, groups[j]
	second, err := r.launch(ctx, r.c.everySequence())
	r.fixedShares, r.readsPartials = false, false
	if err != nil {
		return outputs{}, err
	}
	if !bytes.Equal(first.out, second.out) || !bytes.Equal(first.lse, second.lse) {
		if r.kernels.Folds[r.c.kind] {
			return outputs{}, wrongf("two runs gave different bits, with PartsPerItem %d and %d of schedule.Options", groups[i], groups[j])
		}
		return outputs{}, wrongf("two runs gave different bits")
	}
	return second, nil
}

// launch runs some of the sequences.
func (r *attendRun) launch(ctx context.Context, which []int) (outputs, error) {
	c, s := r.c, r.bench.spec
	var lists schedule.Lists
	var shared sharedLists
	if c.kind == spec.SharedDecode {
		var err error
		if shared, err = r.sharedLists(which); err != nil {
			return outputs{}, err
		}
		lists = shared.shared
	} else {
		var err error
		if lists, err = r.lists(which); err != nil {
			return outputs{}, err
		}
	}
	merged := lists.Merged()
	m := batch{arena: r.memory}
	items := m.upload("items", lists.Items)
	runs := m.upload("runs", lists.Runs)
	slotBegin := m.upload("slot begin", lists.SlotBegin)
	var members, offsets *buffer
	if c.kind == spec.SharedDecode {
		members, offsets = m.upload("members", shared.members), m.upload("member offsets", shared.offsets)
	}
	counter := (*buffer)(nil)
	if !r.fixedShares {
		counter = m.upload("Counter", make([]uint32, 2))
	}
	partialOut := m.alloc("PartialOut", 4*lists.Slots*c.queryHeads*s.Model.VHeadDim)
	partialLSE := m.alloc("PartialLSE", 4*lists.Slots*c.queryHeads)
	if m.err != nil {
		return outputs{}, m.err
	}
	if err := r.out.poison(); err != nil {
		return outputs{}, err
	}
	if r.lse != nil {
		if err := r.lse.poison(); err != nil {
			return outputs{}, err
		}
	}
	score, rotated := s.Rope.ScoreFactors(s.Model.HeadDim)
	p := abi.AttendParams{
		Q: r.q.ptr, KCache: r.k.ptr, VCache: r.v.ptr, Out: r.out.ptr, LSE: r.lse.pointer(),
		PartialOut: partialOut.ptr, PartialLSE: partialLSE.ptr, Items: items.ptr, Runs: runs.ptr,
		PageTable: r.table.ptr, Positions: r.positions.ptr, Rope: r.bench.rope.pointer(), SinkLogits: r.sinkLogits.pointer(),
		KMap: r.maps.K, VMap: r.maps.V, Members: members.pointer(), MemberOffsets: offsets.pointer(), Counter: counter.pointer(),
		QTokenStride: int32(c.qStride), OutTokenStride: int32(c.outStride),
		KVHeads: int32(c.kvHeads), ItemCount: int32(len(lists.Items)),
		Scale: float32(s.Scale * score), RopeScale: float32(rotated),
		RunCount: int32(len(lists.Runs)), PageCount: int32(len(r.l.table)),
	}
	if err := attendKernel(r.kernels, c.kind, p); err != nil {
		return outputs{}, wrongf("launch: %w", err)
	}
	if len(shared.own.Items) > 0 {
		items, runs := m.upload("items of decode", shared.own.Items), m.upload("runs of decode", shared.own.Runs)
		if m.err != nil {
			return outputs{}, m.err
		}
		p.Members, p.MemberOffsets = 0, 0
		p.RunCount = int32(len(shared.own.Runs))
		p.Items, p.Runs, p.ItemCount, p.KMap, p.VMap = items.ptr, runs.ptr, int32(len(shared.own.Items)), r.ownMaps.K, r.ownMaps.V
		if err := r.kernels.Decode(0, p); err != nil {
			return outputs{}, wrongf("launch decode: %w", err)
		}
	}
	var partials []byte
	if r.readsPartials {
		var err error
		if partials, err = r.partials(ctx, shared.members, lists.Slots, partialOut, partialLSE); err != nil {
			return outputs{}, err
		}
	}
	if merged > 0 {
		err := r.kernels.Merge(0, abi.MergeParams{
			PartialOut: partialOut.ptr, PartialLSE: partialLSE.ptr, Out: r.out.ptr, LSE: r.lse.pointer(),
			SlotBegin: slotBegin.ptr, SinkLogits: r.sinkLogits.pointer(),
			OutTokenStride: int32(c.outStride), QHeads: int32(c.queryHeads), Tokens: int32(len(lists.SlotBegin) - 1),
		})
		if err != nil {
			return outputs{}, wrongf("launch merge: %w", err)
		}
	}
	if err := r.bench.dev.Synchronize(ctx, 0); err != nil {
		return outputs{}, wrongf("run: %w", err)
	}
	if counter != nil {
		if err := counter.unchanged(make([]byte, 8)); err != nil {
			return outputs{}, err
		}
	}
	for _, partial := range []*buffer{partialOut, partialLSE} {
		data, err := partial.download()
		if err != nil {
			return outputs{}, err
		}
		if merged == 0 {
			continue
		}
		data = data[:len(data)/lists.Slots*merged] // what is behind is the kernel's own
		if i := unwritten(data, 4); i >= 0 {
			return outputs{}, wrongf("%s: element %d of %d was not written", partial.name, i, len(data)/4)
		}
	}
	o, err := r.collect(which)
	o.partials = partials
	return o, err
}

// partials is the results of members in so many slots, once they are there.
func (r *attendRun) partials(ctx context.Context, members []abi.Member, slots int, buffers ...*buffer) ([]byte, error) {
	if err := r.bench.dev.Synchronize(ctx, 0); err != nil {
		return nil, wrongf("run: %w", err)
	}
	var partials []byte
	for _, b := range buffers {
		data, err := b.download()
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			if m.Slot >= 0 {
				n := len(data) / slots
				partials = append(partials, data[n*int(m.Slot):][:n]...)
			}
		}
	}
	return partials, nil
}

// lists schedules some of the sequences and puts items that do nothing between
// the others.
func (r *attendRun) lists(which []int) (schedule.Lists, error) {
	var sequences []schedule.Sequence
	for _, i := range which {
		sequences = append(sequences, r.l.sequences[i])
	}
	lists, err := schedule.Build(sequences, r.scheduleOptions(r.c.kind))
	lists.Items = append(lists.Items, make([]abi.Item, r.c.padding)...)
	return lists, err
}

func (r *attendRun) scheduleOptions(kind spec.Kind) schedule.Options {
	c, s := r.c, r.bench.spec
	o := schedule.Options{
		Rows: r.kernels.Tiles[kind].Rows, Group: s.Model.Group(), Causal: s.Masks.Causal,
		Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens, MaxPosition: s.Rope.MaxPosition,
		SplitTokens: c.splitTokens, MaxItems: c.maxItems, PageSize: s.Cache.PageSize,
	}
	if r.kernels.Folds[kind] {
		o.Fold, o.PartsPerItem = true, r.partsPerItem
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

// append fills the layout's pages by the append kernel.
func (r *attendRun) append(ctx context.Context) error {
	c, model := r.c, r.bench.spec.Model
	var k, v []float64
	var slots, positions []int32
	for _, st := range r.l.stored {
		k = append(k, c.chunks[st.chunk].k...)
		v = append(v, c.chunks[st.chunk].v...)
		for t, slot := range st.slots {
			slots = append(slots, int32(slot))
			positions = append(positions, int32(st.first+t))
		}
	}
	if len(slots) == 0 {
		return nil
	}
	m := batch{arena: r.memory}
	p := abi.AppendParams{
		K:      m.upload("K", r.bench.format.Encode(nil, k...)).pointer(),
		V:      m.upload("V", r.bench.format.Encode(nil, v...)).pointer(),
		KCache: r.k.ptr, VCache: r.v.ptr,
		Slots: m.upload("slots", slots).pointer(), Positions: m.upload("positions", positions).pointer(),
		Rope:         r.bench.rope.pointer(),
		KTokenStride: int32(c.kvHeads * model.HeadDim), VTokenStride: int32(c.kvHeads * model.VHeadDim),
		KVHeads: int32(c.kvHeads), Tokens: int32(len(slots)),
	}
	if m.err != nil {
		return m.err
	}
	if err := r.kernels.Append(0, p); err != nil {
		return wrongf("launch append: %w", err)
	}
	if err := r.bench.dev.Synchronize(ctx, 0); err != nil {
		return wrongf("run append: %w", err)
	}
	var err error
	if r.l.k.data, err = r.k.download(); err != nil {
		return err
	}
	r.l.v.data, err = r.v.download()
	return err
}

// strided is rows of n elements, encoded, stride elements apart, with poison between them.
func strided(f numeric.Format, x []float64, n, stride int) []byte {
	var data []byte
	for ; len(x) > 0; x = x[n:] {
		if len(data) > 0 {
			data = append(data, bytes.Repeat([]byte{poison}, 2*(stride-n))...)
		}
		data = f.Encode(data, x[:n]...)
	}
	return data
}

func float32s(x []float64) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = float32(x[i])
	}
	return y
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
