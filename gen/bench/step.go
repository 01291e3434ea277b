package bench

import (
	"encoding/binary"
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

// segmentTokens is the length of the chunks that a context is made of.
const segmentTokens = 512

// step is one case in device memory, ready to launch.
type step struct {
	dev     cuda.Device
	buffers []abi.DevicePtr
	attend  abi.AttendParams
	merge   abi.MergeParams
	splits  int // of a sequence
	items   int
	cold    abi.DevicePtr // written between launches, to empty the L2 cache
	coldLen int64
	maps    *kernel.CacheMaps
}

// newStep puts random values in shuffled pages and builds the work lists. The
// step that comes with an error is to be freed too.
func newStep(dev cuda.Device, s spec.Spec, k Kernels, c Case, seed uint64) (*step, error) {
	st := &step{dev: dev}
	rng := rand.New(rand.NewPCG(seed, 1))
	m := s.Model

	sequences, table := sequencesOf(rng, s, c)
	tile := k.Tiles[c.Kind]
	o := schedule.Options{
		Rows: tile.Rows, Group: m.Group(), Causal: s.Masks.Causal,
		Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens, MaxPosition: s.Rope.MaxPosition, PageSize: s.Cache.PageSize,
	}
	if c.Kind != spec.Prefill {
		o = o.Fill(k.Blocks(abi.Kind(c.Kind)), m.KVHeads, tile.Keys)
	}
	lists, err := schedule.Build(sequences, o)
	if err != nil {
		return st, err
	}
	tokens := c.Batch * c.Query
	st.items = len(lists.Items)
	st.splits = max(1, lists.Slots/tokens)

	var positions []int32
	for _, sequence := range sequences {
		positions = append(positions, sequence.Positions...)
	}
	var errs []error
	upload := func(data any) abi.DevicePtr {
		p, err := st.upload(data)
		errs = append(errs, err)
		return p
	}
	random := func(elements int64) abi.DevicePtr {
		p, err := st.random(rng, elements, formatOf(m.DType))
		errs = append(errs, err)
		return p
	}
	alloc := func(bytes int64) abi.DevicePtr {
		p, err := st.alloc(bytes)
		errs = append(errs, err)
		return p
	}
	cacheTokens := int64(len(table)) * int64(s.Cache.PageSize)
	score, query := s.Rope.ScoreFactors(m.HeadDim)
	st.attend = abi.AttendParams{
		Q:          random(int64(tokens) * int64(m.QueryHeads*m.HeadDim)),
		KCache:     random(cacheTokens * int64(m.KVHeads*m.HeadDim)),
		VCache:     random(cacheTokens * int64(m.KVHeads*m.VHeadDim)),
		Out:        alloc(int64(tokens) * int64(m.QueryHeads*m.VHeadDim) * 2),
		PartialOut: alloc(int64(lists.Slots) * int64(m.QueryHeads*m.VHeadDim) * 4),
		PartialLSE: alloc(int64(lists.Slots) * int64(m.QueryHeads) * 4),
		Items:      upload(lists.Items),
		Runs:       upload(lists.Runs),
		PageTable:  upload(table),
		Positions:  upload(positions),

		QTokenStride:   int32(m.QueryHeads * m.HeadDim),
		OutTokenStride: int32(m.QueryHeads * m.VHeadDim),
		KVHeads:        int32(m.KVHeads),
		ItemCount:      int32(len(lists.Items)),
		Scale:          float32(s.Scale * score),
		RopeScale:      float32(query),
	}
	if s.Rope.RotaryDim > 0 {
		st.attend.Rope = upload(rope.Table(s.Rope))
	}
	if s.Masks.SinkLogits {
		st.attend.SinkLogits = upload(make([]float32, m.QueryHeads))
	}
	if lists.Slots > 0 {
		st.merge = abi.MergeParams{
			PartialOut: st.attend.PartialOut, PartialLSE: st.attend.PartialLSE, Out: st.attend.Out, SinkLogits: st.attend.SinkLogits,
			SlotBegin: upload(lists.SlotBegin), OutTokenStride: st.attend.OutTokenStride, QHeads: int32(m.QueryHeads), Tokens: int32(tokens),
		}
	}
	if mapper, ok := k.Launcher.(CacheMapper); ok && errors.Join(errs...) == nil {
		st.maps, err = mapper.MapCache(abi.Kind(c.Kind), st.attend.KCache, st.attend.VCache, len(table), m.KVHeads)
		if err != nil {
			return st, err
		}
		st.attend.KMap, st.attend.VMap = st.maps.K, st.maps.V
	}
	st.coldLen = 4 * dev.Info().L2Bytes
	st.cold = alloc(st.coldLen)
	return st, errors.Join(errs...)
}

// sequencesOf lays out a case: each sequence's context in chunks at arbitrary
// offsets (prefill: its own tokens at offset 0), in shuffled pages.
func sequencesOf(rng *rand.Rand, s spec.Spec, c Case) ([]schedule.Sequence, []int32) {
	var sequences []schedule.Sequence
	var pages int32
	for b := range c.Batch {
		sequence := schedule.Sequence{QueryBegin: int32(b * c.Query)}
		for i := range c.Query {
			sequence.Positions = append(sequence.Positions, int32(c.Context+i))
		}
		chunk := segmentTokens
		if c.Kind == spec.Prefill {
			chunk = c.Context
			for i := range sequence.Positions {
				sequence.Positions[i] = int32(i)
			}
		}
		for begin := 0; begin < c.Context; begin += chunk {
			n := min(chunk, c.Context-begin)
			segment := schedule.Segment{Page: pages, Tokens: int32(n), Own: c.Kind == spec.Prefill}
			if !segment.Own {
				segment.Offset = int32(rng.IntN(max(1, s.Rope.MaxPosition-n)))
			}
			sequence.Segments = append(sequence.Segments, segment)
			pages += int32((n + s.Cache.PageSize - 1) / s.Cache.PageSize)
		}
		sequences = append(sequences, sequence)
	}
	table := make([]int32, pages)
	for i, p := range rng.Perm(len(table)) {
		table[i] = int32(p)
	}
	return sequences, table
}

func formatOf(d spec.DType) numeric.Format {
	if d == spec.FP16 {
		return numeric.FP16
	}
	return numeric.BF16
}

func (st *step) launch(k Kernels, kind spec.Kind, stream cuda.Stream) error {
	var err error
	switch kind {
	case spec.Prefill:
		err = k.Prefill(stream, st.attend)
	case spec.Extend:
		err = k.Extend(stream, st.attend)
	case spec.Decode:
		err = k.Decode(stream, st.attend)
	default:
		err = fmt.Errorf("kind %s has no timing", kind)
	}
	if err == nil && st.merge.Tokens > 0 {
		err = k.Merge(stream, st.merge)
	}
	return err
}

func (st *step) coolCache(stream cuda.Stream) error {
	return st.dev.Fill(stream, st.cold, 0, st.coldLen)
}

func (st *step) alloc(bytes int64) (abi.DevicePtr, error) {
	p, err := st.dev.Alloc(max(bytes, 256))
	if err == nil {
		st.buffers = append(st.buffers, p)
	}
	return p, err
}

func (st *step) upload(data any) (abi.DevicePtr, error) {
	raw, err := binary.Append(nil, binary.LittleEndian, data)
	if err != nil {
		return 0, err
	}
	p, err := st.alloc(int64(len(raw)))
	if err != nil || len(raw) == 0 {
		return p, err
	}
	return p, st.dev.Upload(p, raw)
}

// random fills memory with normally distributed elements, the same megabytes again and again.
func (st *step) random(rng *rand.Rand, elements int64, format numeric.Format) (abi.DevicePtr, error) {
	p, err := st.alloc(2 * elements)
	if err != nil {
		return 0, err
	}
	block := make([]byte, 2*min(elements, 1<<20))
	for i := 0; i < len(block); i += 2 {
		binary.LittleEndian.PutUint16(block[i:], format.Bits(rng.NormFloat64()))
	}
	for done := int64(0); done < 2*elements; done += int64(len(block)) {
		n := min(int64(len(block)), 2*elements-done)
		if err := st.dev.Upload(p+abi.DevicePtr(done), block[:n]); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (st *step) free() {
	for _, p := range st.buffers {
		_ = st.dev.Free(p)
	}
	if st.maps != nil {
		_ = st.maps.Free()
	}
}
