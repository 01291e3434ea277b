package demo

import (
	"fmt"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/tests/oracle"
)

// maxError is the largest relative error of a row that rounding explains, with
// room: an element type of 8 bits gives about 0.01, one wrong key or angle
// among the few hundred of a request 0.1 and more.
const maxError = 0.05

// judge compares outputs of a request's own tokens, n of them from token first
// on, with attention in float64. They are rows of a step's outputs from row on.
func (v *server) judge(out abi.DevicePtr, r, row, first, n int) error {
	if !v.work.checked(r) {
		return nil
	}
	size := v.device.outputBytes()
	data := make([]byte, n*size)
	if err := v.device.dev.Download(data, out+abi.DevicePtr(row*size)); err != nil {
		return fmt.Errorf("outputs: %w", err)
	}
	got, want := v.model.format.Decode(data), v.oracle(r, first, n)
	dim := v.device.spec.Model.VHeadDim
	for i := 0; i < len(want); i += dim {
		var err2, ref2 float64
		for d := i; d < i+dim; d++ {
			err2 += (got[d] - want[d]) * (got[d] - want[d])
			ref2 += want[d] * want[d]
		}
		relative := math.Sqrt(err2 / ref2)
		if !(relative <= maxError) {
			return fmt.Errorf("own token %d: an output is %.3g from the reference, whose norm is %.3g", first+i/dim/v.device.spec.Model.QueryHeads, math.Sqrt(err2), math.Sqrt(ref2))
		}
		v.largest = max(v.largest, relative)
	}
	return nil
}

// oracle is the outputs of n of a request's own tokens.
func (v *server) oracle(r, first, n int) []float64 {
	s, own := v.device.spec, v.model.own(r).part(0, first+n)
	decode := v.model.format.Decode
	p := oracle.Problem{
		QueryHeads: s.Model.QueryHeads, KVHeads: s.Model.KVHeads, HeadDim: s.Model.HeadDim, VHeadDim: s.Model.VHeadDim,
		Rope: s.Rope, Scale: s.Scale, SoftCap: s.Masks.SoftCap, Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens,
		Q: decode(own.part(first, first+n).q),
	}
	for _, x := range v.model.sinkLogits() {
		p.SinkLogits = append(p.SinkLogits, float64(x))
	}
	offset := 0
	for _, document := range v.work.requests[r] {
		d := v.model.document(document)
		p.Segments = append(p.Segments, oracle.Segment{Offset: offset, Causal: oracle.All, K: decode(d.k), V: decode(d.v)})
		offset += d.tokens
	}
	causal := oracle.All
	if s.Masks.Causal {
		causal = first
	}
	p.Segments = append(p.Segments, oracle.Segment{Offset: offset, Causal: causal, K: decode(own.k), V: decode(own.v)})
	for i := range n {
		p.Positions = append(p.Positions, offset+first+i)
	}
	return oracle.Attend(p).Out
}
