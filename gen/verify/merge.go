package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/tests/oracle"
)

// mergeTrial is tokens with none to several partial results, some of which saw
// no key. It does not depend on the encoding.
func (b *bench) mergeTrial(rng *rand.Rand) trial {
	d := b.dice(rng)
	dim := b.spec.Model.VHeadDim
	heads := d.kvHeads() * b.spec.Model.Group()
	tokens := 1 + d.length(d.size.tokens-1)
	slotBegin := make([]int32, tokens+1)
	for t := range tokens {
		slotBegin[t+1] = slotBegin[t] + []int32{0, 1, 2, 3, 8, d.Int32N(40), d.Int32N(200)}[d.IntN(7)]
	}
	slots := int(slotBegin[tokens])
	partialOut, partialLSE := make([]float32, slots*heads*dim), make([]float32, slots*heads)
	for i := range partialOut {
		partialOut[i] = float32(d.NormFloat64())
	}
	for i := range partialLSE {
		partialLSE[i] = float32(4 * d.NormFloat64())
		switch d.IntN(8) {
		case 0: // saw no key
			partialLSE[i] = float32(math.Inf(-1))
			clear(partialOut[i*dim:][:dim])
		case 1: // outweighs the rest, or counts for nothing
			partialLSE[i] *= 10
		}
	}
	sinkLogits := d.logits(heads)
	stride := d.stride(heads * dim)
	withLSE := !d.oneIn(8)

	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		memory := newArena(b.dev)
		defer memory.free()
		m := batch{arena: memory}
		out := m.alloc("Out", 2*((tokens-1)*stride+heads*dim))
		outs, lses := m.upload("PartialOut", partialOut), m.upload("PartialLSE", partialLSE)
		p := abi.MergeParams{
			PartialOut: outs.pointer(), PartialLSE: lses.pointer(),
			Out: out.pointer(), SlotBegin: m.upload("slot begin", slotBegin).pointer(),
			OutTokenStride: int32(stride), QHeads: int32(heads), Tokens: int32(tokens),
		}
		var lse *buffer
		if withLSE {
			lse = m.alloc("LSE", 4*tokens*heads)
			p.LSE = lse.pointer()
		}
		if sinkLogits != nil {
			p.SinkLogits = m.upload("sink logits", float32s(sinkLogits)).pointer()
		}
		if m.err != nil {
			return measure{}, m.err
		}
		if lse == nil {
			lse = out // as a stand-in: both are run and compared
		}
		gotOut, gotLSE, err := b.runTwice(ctx, out, lse, func() error {
			// A run before this one has used them up.
			if err := errors.Join(outs.write(partialOut), lses.write(partialLSE)); err != nil {
				return err
			}
			return b.kernels[e].Merge(0, p)
		})
		if err != nil {
			return measure{}, err
		}

		result := measure{bound: b.format.Epsilon()}
		for t := range tokens {
			begin, end := 2*t*stride, min(len(gotOut), 2*(t+1)*stride)
			row, gap := gotOut[begin:begin+2*heads*dim], gotOut[begin+2*heads*dim:end]
			if notPoison(gap) >= 0 {
				return result, wrongf("Out: token %d: the gap behind its row was written", t)
			}
			if slotBegin[t] == slotBegin[t+1] {
				if notPoison(row) >= 0 || withLSE && notPoison(gotLSE[4*t*heads:][:4*heads]) >= 0 {
					return result, wrongf("token %d has no slots and was written", t)
				}
				continue
			}
			for h := range heads {
				var partOuts [][]float64
				var partLSEs []float64
				inputs := 0.0
				for slot := int(slotBegin[t]); slot < int(slotBegin[t+1]); slot++ {
					part := make([]float64, dim)
					for i := range part {
						part[i] = float64(partialOut[(slot*heads+h)*dim+i])
						inputs = max(inputs, math.Abs(part[i]))
					}
					partOuts = append(partOuts, part)
					partLSEs = append(partLSEs, float64(partialLSE[slot*heads+h])*math.Ln2)
				}
				sink := math.Inf(-1)
				if sinkLogits != nil {
					sink = sinkLogits[h]
				}
				ref, wantLSE := oracle.Merge(partOuts, partLSEs, sink)
				got := b.format.Decode(row[2*h*dim:][:2*dim])
				for i, want := range ref {
					e := math.Abs(got[i] - want)
					result.err2 += e * e
					result.ref2 += want * want
					result.largest = max(result.largest, e)
					result.rows++
					if limit := roundedOnce(b.format, want, inputs); !(e <= limit) {
						return result, wrongf("Out: token %d, head %d, element %d is %g, want %g; at most %.3e away is right", t, h, i, got[i], want, limit)
					}
				}
				if !withLSE {
					continue
				}
				gotLSE := float64(math.Float32frombits(binary.LittleEndian.Uint32(gotLSE[4*(t*heads+h):])))
				if gotLSE == wantLSE {
					continue
				}
				e, limit := math.Abs(gotLSE-wantLSE), lseFloat32*(1+math.Abs(wantLSE))
				result.lse = max(result.lse, e)
				if !(e <= limit) {
					return result, wrongf("LSE: token %d, head %d is %g, want %g; at most %.3e away is right", t, h, gotLSE, wantLSE, limit)
				}
			}
		}
		return result, nil
	}
}
