package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Problem is the inputs of one case in device memory, for any kernels of its spec.
type Problem struct {
	memory
	spec   spec.Spec
	c      Case
	layout Layout
	table  []int32 // of the layout's pages
	cache  cache
	q, positions, rope, sinks,
	out abi.DevicePtr
	tokens int // query tokens of all sequences
	seed   uint64
	maps   []*kernel.CacheMaps
	side   *cuda.Side // of shared decode, beside decode; nil until it is wanted

	append  abi.AppendParams // ahead of each layer; no tokens: a step is of one layer, without append
	further []cache          // KV of the layers behind the first

	FixedShares  bool // see Options
	PartsPerItem int  // likewise
}

// cache is pages of K and V.
type cache struct {
	keys, values abi.DevicePtr
	table        abi.DevicePtr // of pages
	entries      []int32       // of the table
	pages        int
}

// NewProblem puts random values in shuffled pages. The caller frees it.
func NewProblem(dev cuda.Device, s spec.Spec, c Case, seed uint64) (*Problem, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &Problem{memory: memory{dev: dev}, spec: s, c: c, layout: NewLayout(c, s, seed), tokens: c.Batch * c.Query, seed: seed}
	p.table = p.layout.table(rng)
	p.cache = p.newCache(rng, p.table, p.layout.Pages)
	m := s.Model
	p.q = p.random(rng, int64(p.tokens)*int64(m.QueryHeads*m.HeadDim), formatOf(m.DType))
	p.out = p.alloc(2 * int64(p.tokens) * int64(m.QueryHeads*m.VHeadDim))
	var positions []int32
	for _, sequence := range p.layout.Sequences {
		positions = append(positions, sequence.Positions...)
	}
	p.positions = p.upload(positions)
	if s.Rope.RotaryDim > 0 {
		p.rope = p.upload(rope.Table(s.Rope))
	}
	if s.Masks.SinkLogits {
		p.sinks = p.upload(make([]float32, m.QueryHeads))
	}
	if p.err == nil {
		p.err = dev.Synchronize(context.Background(), 0) // the copies that random starts
	}
	if err := p.err; err != nil {
		p.Free()
		return nil, err
	}
	return p, nil
}

// newCache makes pages, random where rng is given.
func (p *Problem) newCache(rng *rand.Rand, table []int32, pages int) cache {
	c := cache{table: p.upload(table), entries: table, pages: pages}
	tokens := int64(pages) * int64(p.spec.Cache.PageSize)
	for _, x := range []struct {
		to  *abi.DevicePtr
		dim int
	}{{&c.keys, p.spec.Model.HeadDim}, {&c.values, p.spec.Model.VHeadDim}} {
		elements := tokens * int64(p.spec.Model.KVHeads*x.dim)
		if rng != nil {
			*x.to = p.random(rng, elements, formatOf(p.spec.Model.DType))
		} else {
			*x.to = p.alloc(2 * elements)
		}
	}
	return c
}

// Free gives the memory back.
func (p *Problem) Free() {
	p.releaseMaps(0)
	p.memory.free()
	_ = p.side.Close()
}

// mark returns a function that frees what was made after it.
func (p *Problem) mark() func() {
	buffers, maps := len(p.buffers), len(p.maps)
	return func() {
		p.releaseMaps(maps)
		p.release(buffers)
	}
}

func (p *Problem) releaseMaps(from int) {
	for _, m := range p.maps[from:] {
		_ = m.Free()
	}
	p.maps = p.maps[:from]
}

func formatOf(d spec.DType) numeric.Format {
	if d == spec.FP16 {
		return numeric.FP16
	}
	return numeric.BF16
}

// step is the launches of one way to compute a case.
type step struct {
	kernels Kernels
	kind    spec.Kind
	choice  kernel.Choice
	append  abi.AppendParams      // no tokens: none
	ahead   abi.MaterialiseParams // rotates keys ahead of attend; no copies: none
	attend  abi.AttendParams
	shared  abi.AttendParams // of shared decode, beside attend; no items: none
	side    *cuda.Side       // that it is then launched on
	merge   abi.MergeParams
	further []layer // behind the first, whose KV is in attend and shared
	splits  int     // of a sequence, in the mean
	parts   int     // of an item, at most
	items   int     // of all launches
	saved   float64 // tokens of KV that are not read again
}

// attend builds the work lists of sequences whose KV is in a cache.
func (p *Problem) attend(k Kernels, s spec.Spec, sequences []schedule.Sequence, c cache) (*step, error) {
	var ahead schedule.Ahead
	if k.choose(s, p.c).KeysAhead {
		if err := ahead.List(sequences, c.entries, s.Cache.PageSize); err != nil {
			return nil, err
		}
		sequences = ahead.Sequences
	}
	lists, err := schedule.Build(sequences, p.scheduleOptions(k, s))
	if err != nil {
		return nil, err
	}
	st, err := p.step(k, s, lists, c)
	if err != nil || len(ahead.Copies) == 0 {
		return st, err
	}
	return st, p.rotateAhead(st, ahead, c)
}

// rotateAhead has a step rotate its keys first, to pages of their own.
func (p *Problem) rotateAhead(st *step, a schedule.Ahead, c cache) error {
	m := p.spec.Model
	keys := p.alloc(2 * int64(len(a.Pages)) * int64(p.spec.Cache.PageSize*m.KVHeads*m.HeadDim))
	st.attend.KCache, st.attend.PageTable, st.attend.PageCount = keys, p.upload(a.Pages), int32(len(a.Pages))
	st.ahead = abi.MaterialiseParams{
		SrcK: c.keys, DstK: keys, Copies: p.upload(a.Copies), PageTable: st.attend.PageTable, Rope: p.rope,
		KVHeads: int32(m.KVHeads), CopyCount: int32(len(a.Copies)),
	}
	if p.err != nil {
		return p.err
	}
	maps, err := st.kernels.Launcher.(Chooser).MapKeys(st.choice, keys, len(a.Pages), m.KVHeads)
	if err != nil {
		return err
	}
	p.maps = append(p.maps, maps)
	st.attend.KMap = maps.K
	return nil
}

// scheduleOptions are those of the kernel for the case.
func (p *Problem) scheduleOptions(k Kernels, s spec.Spec) schedule.Options {
	how := k.choose(s, p.c)
	o := schedule.Options{
		Group: s.Model.Group(), Causal: s.Masks.Causal, Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens,
		MaxPosition: s.Rope.MaxPosition, PageSize: s.Cache.PageSize,
	}
	if how.Folds {
		o.PartsPerItem, o.Whole = p.PartsPerItem, s.Whole(p.c.Kind)
	}
	o = how.Schedule(o, s.Model.KVHeads)
	return o.Cache(p.dev.Info().L2Bytes, 2*s.Model.KVHeads*(s.Model.HeadDim+s.Model.VHeadDim))
}

// attendShared is attend by shared decode and, for what it leaves, decode.
func (p *Problem) attendShared(k Kernels, bitwise bool) (*step, error) {
	tile := k.Tiles[spec.SharedDecode]
	lists, err := new(schedule.SharedBuilder).Build(p.layout.Sequences, p.scheduleOptions(k, p.spec), schedule.SharedOptions{
		Rows: tile.Rows, Keys: tile.Keys, Blocks: k.Blocks(abi.KindSharedDecode), KVHeads: p.spec.Model.KVHeads, Bitwise: bitwise,
	})
	if err != nil {
		return nil, err
	}
	st, err := p.step(k, p.spec, lists.Decode, p.cache)
	if err != nil || len(lists.Items) == 0 {
		return st, err
	}
	st.items += len(lists.Items)
	st.saved = float64(lists.Saved)
	st.shared = st.attend
	st.shared.Items, st.shared.Runs, st.shared.ItemCount = p.upload(lists.Items), p.upload(lists.Runs), int32(len(lists.Items))
	st.shared.RunCount, st.shared.Counter = int32(len(lists.Runs)), p.counter()
	st.shared.Members, st.shared.MemberOffsets = p.upload(lists.Members), p.upload(lists.Offsets)
	if p.err != nil {
		return nil, p.err
	}
	if p.side == nil {
		if p.side, err = cuda.OpenSide(p.dev); err != nil {
			return nil, err
		}
	}
	st.side = p.side
	for i := range st.further {
		if st.further[i].shared, err = p.mapCache(k, spec.SharedDecode, p.further[i]); err != nil {
			return nil, err
		}
	}
	of, err := p.mapCache(k, spec.SharedDecode, p.cache)
	st.shared.KMap, st.shared.VMap = of.keys, of.values
	return st, err
}

// counter is one for a launch, or null.
func (p *Problem) counter() abi.DevicePtr {
	if p.FixedShares {
		return 0
	}
	return p.upload(make([]uint32, 2))
}

// step puts work lists into device memory.
func (p *Problem) step(k Kernels, s spec.Spec, lists schedule.Lists, c cache) (*step, error) {
	m := s.Model
	score, query := s.Rope.ScoreFactors(m.HeadDim)
	st := &step{kernels: k, kind: p.c.Kind, choice: k.choose(s, p.c), items: len(lists.Items), splits: max(1, lists.Merged()/p.tokens), parts: lists.PartsPerItem}
	st.attend = abi.AttendParams{
		Q: p.q, KCache: c.keys, VCache: c.values, Out: p.out,
		PartialOut: p.alloc(4 * int64(lists.Slots) * int64(m.QueryHeads*m.VHeadDim)),
		PartialLSE: p.alloc(4 * int64(lists.Slots) * int64(m.QueryHeads)),
		Items:      p.upload(lists.Items),
		Runs:       p.upload(lists.Runs),
		PageTable:  c.table,
		Positions:  p.positions,
		Rope:       p.rope,
		SinkLogits: p.sinks,

		QTokenStride:   int32(m.QueryHeads * m.HeadDim),
		OutTokenStride: int32(m.QueryHeads * m.VHeadDim),
		KVHeads:        int32(m.KVHeads),
		ItemCount:      int32(len(lists.Items)),
		Scale:          float32(s.Scale * score),
		RopeScale:      float32(query),
		RunCount:       int32(len(lists.Runs)),
		PageCount:      int32(len(c.entries)),
		Counter:        p.counter(),
	}
	if lists.Merged() > 0 {
		st.merge = abi.MergeParams{
			PartialOut: st.attend.PartialOut, PartialLSE: st.attend.PartialLSE, Out: st.attend.Out, SinkLogits: st.attend.SinkLogits,
			SlotBegin: p.upload(lists.SlotBegin), OutTokenStride: st.attend.OutTokenStride, QHeads: int32(m.QueryHeads), Tokens: int32(p.tokens),
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	mapped := func(c cache) (maps, error) {
		chooser, ok := k.Launcher.(Chooser)
		if !ok {
			return p.mapCache(k, p.c.Kind, c)
		}
		of, err := chooser.MapChoice(st.choice, c.keys, c.values, c.pages, m.KVHeads)
		if err != nil {
			return maps{}, err
		}
		return p.keepMaps(of), nil
	}
	of, err := mapped(c)
	if err != nil {
		return nil, err
	}
	st.attend.KMap, st.attend.VMap = of.keys, of.values
	if len(p.further) > 0 && c.keys != p.cache.keys {
		return nil, errors.New("the layers of a graph have no KV but the case's own")
	}
	st.append = p.append
	for _, c := range p.further {
		l := layer{keys: c.keys, values: c.values}
		if l.attend, err = mapped(c); err != nil {
			return nil, err
		}
		st.further = append(st.further, l)
	}
	return st, nil
}

// maps are the tensor maps of a kernel; null where it needs none.
type maps struct{ keys, values abi.DevicePtr }

func (p *Problem) keepMaps(m *kernel.CacheMaps) maps {
	p.maps = append(p.maps, m)
	return maps{m.K, m.V}
}

// mapCache makes the tensor maps that the kernel of a kind needs.
func (p *Problem) mapCache(k Kernels, kind spec.Kind, c cache) (maps, error) {
	mapper, ok := k.Launcher.(CacheMapper)
	if !ok {
		return maps{}, nil
	}
	of, err := mapper.MapCache(abi.Kind(kind), c.keys, c.values, c.pages, p.spec.Model.KVHeads)
	if err != nil {
		return maps{}, err
	}
	return p.keepMaps(of), nil
}

// launchLayer puts the layer whose KV the parameters name on a stream.
func (st *step) launchLayer(stream cuda.Stream) (err error) {
	if st.append.Tokens > 0 {
		if err := st.kernels.Append(stream, st.append); err != nil {
			return err
		}
	}
	if st.shared.ItemCount > 0 {
		err = st.side.Both(stream, st.launchAttend, func(stream cuda.Stream) error { return st.kernels.SharedDecode(stream, st.shared) })
	} else {
		err = st.launchAttend(stream)
	}
	if err == nil && st.merge.Tokens > 0 {
		err = st.kernels.Merge(stream, st.merge)
	}
	return err
}

func (st *step) launchAttend(stream cuda.Stream) error {
	chooser, chooses := st.kernels.Launcher.(Chooser)
	switch {
	case st.attend.ItemCount == 0: // shared decode may leave nothing
		return nil
	case chooses && st.ahead.CopyCount > 0:
		if err := chooser.Materialise(stream, st.ahead); err != nil {
			return err
		}
		return chooser.Attend(stream, st.choice, st.attend)
	case chooses:
		return chooser.Attend(stream, st.choice, st.attend)
	case st.kind == spec.Prefill:
		return st.kernels.Prefill(stream, st.attend)
	case st.kind == spec.Extend:
		return st.kernels.Extend(stream, st.attend)
	case st.kind == spec.Decode:
		return st.kernels.Decode(stream, st.attend)
	}
	return fmt.Errorf("kind %s has no timing", st.kind)
}
