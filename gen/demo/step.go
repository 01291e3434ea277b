package demo

import (
	"context"
	"fmt"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// splitTokens is where the keys of extend and decode are cut.
const splitTokens = 256

// step is one forward step of the layer: new tokens' K and V are written to
// pages, and their queries attend. Its inputs are on the device before it begins.
type step struct {
	device   *device
	cache    *kvcache.Cache
	encoding spec.Encoding
	kind     spec.Kind

	table     kvcache.Table
	sequences []schedule.Sequence
	slots     []int32 // of each new token
	stored    []int32 // the position that its K is stored at
	positions []int32 // its position in its sequence

	q, k, v, out, sinks abi.DevicePtr
}

// newStep uploads the inputs, of all the step's sequences one after the other.
func (d *device) newStep(cache *kvcache.Cache, m *model, e spec.Encoding, kind spec.Kind, in vectors) (*step, error) {
	s := &step{device: d, cache: cache, encoding: e, kind: kind}
	for _, f := range []struct {
		name string
		data any
		to   *abi.DevicePtr
	}{{"Q", in.q, &s.q}, {"K", in.k, &s.k}, {"V", in.v, &s.v}} {
		var err error
		if *f.to, err = d.upload(f.name, f.data); err != nil {
			return nil, err
		}
	}
	if logits := m.sinkLogits(); logits != nil {
		var err error
		if s.sinks, err = d.upload("sink logits", logits); err != nil {
			return nil, err
		}
	}
	var err error
	s.out, err = d.reserve("Out", 2*in.tokens*d.spec.Model.QueryHeads*d.spec.Model.VHeadDim)
	return s, err
}

// chunk adds a document that is to be encoded alone to the given pages.
func (s *step) chunk(pages []int32, tokens int) {
	first := s.table.Append(pages)
	s.slots = s.cache.Config().Shape.Slots(s.slots, pages, 0, tokens)
	s.add(0, 0, tokens, []schedule.Segment{{Page: first, Tokens: int32(tokens), Own: true}})
}

// sequence adds a sequence and n new tokens of its own.
func (s *step) sequence(q *kvcache.Sequence, n int) error {
	own := q.Tokens()
	if err := q.Extend(n); err != nil {
		return err
	}
	var err error
	if s.slots, err = q.Slots(s.slots, own); err != nil {
		return err
	}
	segments, err := s.table.Add(nil, q)
	if err != nil {
		return err
	}
	s.add(q.Next()-n, own, n, segments)
	return nil
}

// add adds n tokens, the first of which is at a position, and in a place among
// the own tokens.
func (s *step) add(position, own, n int, segments []schedule.Segment) {
	begin := len(s.positions)
	for i := range n {
		s.positions = append(s.positions, int32(position+i))
		if s.encoding == spec.Segment {
			s.stored = append(s.stored, int32(own+i))
		} else {
			s.stored = append(s.stored, int32(position+i))
		}
	}
	s.sequences = append(s.sequences, schedule.Sequence{QueryBegin: int32(begin), Segments: segments})
}

// run schedules and launches the step, and waits for it.
func (s *step) run(ctx context.Context) error {
	d, m := s.device, s.device.spec.Model
	kernels := d.kernels[s.encoding]
	for i := range s.sequences {
		end := len(s.positions)
		if i+1 < len(s.sequences) {
			end = int(s.sequences[i+1].QueryBegin)
		}
		s.sequences[i].Positions = s.positions[s.sequences[i].QueryBegin:end]
	}
	o := schedule.Options{
		Rows: kernels.Tiles[s.kind].Rows, Group: m.Group(), Causal: d.spec.Masks.Causal, Window: d.spec.Masks.Window,
		SinkTokens: d.spec.Masks.SinkTokens, MaxPosition: d.spec.Rope.MaxPosition, PageSize: d.spec.Cache.PageSize,
	}
	if s.kind != spec.Prefill {
		o.SplitTokens = splitTokens
	}
	lists, err := schedule.Build(s.sequences, o)
	if err != nil {
		return err
	}
	u := uploads{device: d}
	layer := s.cache.Layer(0)
	score, rotated := d.spec.Rope.ScoreFactors(m.HeadDim)
	tokens := int32(len(s.positions))
	attend := abi.AttendParams{
		Q: s.q, KCache: layer.K, VCache: layer.V, Out: s.out, Rope: d.rope, SinkLogits: s.sinks,
		PartialOut: u.reserve("PartialOut", 4*lists.Slots*m.QueryHeads*m.VHeadDim),
		PartialLSE: u.reserve("PartialLSE", 4*lists.Slots*m.QueryHeads),
		Items:      u.upload("items", lists.Items),
		Runs:       u.upload("runs", lists.Runs),
		PageTable:  u.upload("page table", s.table.Pages),
		Positions:  u.upload("positions", s.positions),

		QTokenStride: int32(m.QueryHeads * m.HeadDim), OutTokenStride: int32(m.QueryHeads * m.VHeadDim),
		KVHeads: int32(m.KVHeads), ItemCount: int32(len(lists.Items)),
		Scale: float32(d.spec.Scale * score), RopeScale: float32(rotated),
	}
	write := abi.AppendParams{
		K: s.k, V: s.v, KCache: layer.K, VCache: layer.V, Rope: d.rope,
		Slots: u.upload("slots", s.slots), Positions: u.upload("stored positions", s.stored),
		KTokenStride: int32(m.KVHeads * m.HeadDim), VTokenStride: int32(m.KVHeads * m.VHeadDim), KVHeads: int32(m.KVHeads), Tokens: tokens,
	}
	merge := abi.MergeParams{
		PartialOut: attend.PartialOut, PartialLSE: attend.PartialLSE, Out: s.out, SinkLogits: s.sinks,
		SlotBegin: u.upload("slot begin", lists.SlotBegin), OutTokenStride: attend.OutTokenStride, QHeads: int32(m.QueryHeads), Tokens: tokens,
	}
	if u.err != nil {
		return u.err
	}
	if err := kernels.Append(0, write); err != nil {
		return err
	}
	switch s.kind {
	case spec.Prefill:
		err = kernels.Prefill(0, attend)
	case spec.Extend:
		err = kernels.Extend(0, attend)
	default:
		err = kernels.Decode(0, attend)
	}
	if err == nil && lists.Slots > 0 {
		err = kernels.Merge(0, merge)
	}
	if err != nil {
		return err
	}
	return d.dev.Synchronize(ctx, 0)
}

// output is the outputs of n of the step's tokens.
func (s *step) output(from, n int) ([]byte, error) {
	row := 2 * s.device.spec.Model.QueryHeads * s.device.spec.Model.VHeadDim
	out := make([]byte, n*row)
	if err := s.device.dev.Download(out, s.out+abi.DevicePtr(from*row)); err != nil {
		return nil, fmt.Errorf("outputs: %w", err)
	}
	return out, nil
}

// uploads collects the errors of a row of uploads.
type uploads struct {
	device *device
	err    error
}

func (u *uploads) upload(name string, data any) abi.DevicePtr {
	if u.err != nil {
		return 0
	}
	p, err := u.device.upload(name, data)
	u.err = err
	return p
}

func (u *uploads) reserve(name string, n int) abi.DevicePtr {
	if u.err != nil {
		return 0
	}
	p, err := u.device.reserve(name, n)
	u.err = err
	return p
}
