package verify

import (
	"bytes"
	"context"
	"math"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// What other kernels make for those that are verified.

// queriesByMerge is a launch that makes the queries, each of one part, so that the kernel behind it
// must wait for them. Merge writes rows of the values' dimension.
func (r *attendRun) queriesByMerge(m *allocations) *abi.MergeParams {
	c, model := r.c, r.bench.spec.Model
	if !has(r.bench.spec.Kinds, spec.Merge) || model.HeadDim != model.VHeadDim {
		return nil
	}
	parts := make([]float32, len(c.q))
	for i, x := range c.q {
		parts[i] = float32(r.bench.format.Round(x))
	}
	begin := make([]int32, c.tokens+1)
	for i := range begin {
		begin[i] = int32(i)
	}
	p := abi.MergeParams{
		PartialOut: m.upload("Q as partial results", parts).pointer(), PartialLSE: m.upload("LSE of Q", make([]float32, c.tokens*c.queryHeads)).pointer(),
		Out: r.q.pointer(), SlotBegin: m.upload("slot begin of Q", begin).pointer(),
		OutTokenStride: int32(c.qStride), QHeads: int32(c.queryHeads), Tokens: int32(c.tokens),
	}
	if c.sinkLogits != nil {
		none := make([]float32, c.queryHeads)
		for i := range none {
			none[i] = float32(math.Inf(-1))
		}
		p.SinkLogits = m.upload("no sink logits", none).pointer()
	}
	return &p
}

// makeQueries launches that, over what would show if it were read: ahead of the run's first kernel, as queries stay
// and a launch for each kernel would take the emulator a fifth of its time.
func (r *attendRun) makeQueries() error {
	if r.queries == nil {
		return nil
	}
	if err := r.q.poison(); err != nil {
		return err
	}
	if err := r.kernels.Merge(0, *r.queries); err != nil {
		return wrongf("launch merge for Q: %w", err)
	}
	r.queries = nil
	return nil
}

// rotateAhead rotates the keys of a launch to pages of their own, and has it read these.
func (r *attendRun) rotateAhead(a *schedule.Ahead, p *abi.AttendParams) error {
	kind, mapper := abi.Kind(r.c.kind), r.kernels.Launcher.(KeyMapper)
	m := allocations{arena: r.memory}
	table, copies := m.upload("page table of rotated keys", a.Pages), m.upload("copies", a.Copies)
	keys := m.alloc("rotated keys", len(a.Pages)*len(r.l.k.data)/r.l.k.count())
	if m.err != nil {
		return m.err
	}
	if err := keys.poison(); err != nil {
		return err
	}
	maps, err := mapper.MapKeys(mapper.Choose(kind, 1, 1), keys.ptr, len(a.Pages), r.c.kvHeads)
	if err != nil {
		return err
	}
	r.memory.maps = append(r.memory.maps, maps)
	p.KCache, p.KMap, p.PageTable, p.PageCount = keys.ptr, maps.K, table.ptr, int32(len(a.Pages))
	err = r.kernels.Materialise(0, abi.MaterialiseParams{
		SrcK: r.k.ptr, DstK: keys.ptr, Copies: copies.ptr, PageTable: table.ptr, Rope: p.Rope, KVHeads: p.KVHeads, CopyCount: int32(len(a.Copies)),
	})
	if err != nil {
		return wrongf("launch materialise: %w", err)
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
	m := allocations{arena: r.memory}
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
