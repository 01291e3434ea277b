package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/tests/oracle"
)

// mergeCase is tokens with none to several partial results, some of which saw no key.
type mergeCase struct {
	tokens, heads, dim int
	slotBegin          []int32
	partialOut         []float32 // [slots][heads][dim]
	partialLSE         []float32 // [slots][heads]
	sinkLogits         []float64
	stride             int // of a token's output
	withLSE            bool
}

// mergeTrial is one case of merge. It does not depend on the encoding.
func (b *bench) mergeTrial(rng *rand.Rand) trial {
	c := b.dice(rng).mergeCase()
	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		out, lse, err := c.run(ctx, b, e)
		if err != nil {
			return measure{}, err
		}
		return c.compare(out, lse, b.format)
	}
}

func (d dice) mergeCase() mergeCase {
	c := mergeCase{dim: d.spec.Model.VHeadDim, heads: d.kvHeads() * d.spec.Model.Group()}
	c.tokens = 1 + d.length(d.size.tokens-1)
	c.slotBegin = make([]int32, c.tokens+1)
	for t := range c.tokens {
		c.slotBegin[t+1] = c.slotBegin[t] + []int32{0, 1, 2, 3, 8, d.Int32N(40), d.Int32N(200)}[d.IntN(7)]
	}
	slots := int(c.slotBegin[c.tokens])
	c.partialOut, c.partialLSE = make([]float32, slots*c.heads*c.dim), make([]float32, slots*c.heads)
	for i := range c.partialOut {
		c.partialOut[i] = float32(d.NormFloat64())
	}
	for i := range c.partialLSE {
		c.partialLSE[i] = float32(4 * d.NormFloat64())
		switch d.IntN(8) {
		case 0: // saw no key
			c.partialLSE[i] = float32(math.Inf(-1))
			clear(c.partialOut[i*c.dim:][:c.dim])
		case 1: // outweighs the rest, or counts for nothing
			c.partialLSE[i] *= 10
		}
	}
	c.sinkLogits = d.logits(c.heads)
	c.stride = d.stride(c.heads * c.dim)
	c.withLSE = !d.oneIn(8)
	return c
}

// run returns what merge wrote; lse means nothing in a case without LSE.
func (c *mergeCase) run(ctx context.Context, b *bench, e spec.Encoding) (out, lse []byte, err error) {
	memory := newArena(b.dev)
	defer memory.free()
	m := allocations{arena: memory}
	outBuffer := m.alloc("Out", 2*((c.tokens-1)*c.stride+c.heads*c.dim))
	outs, lses := m.upload("PartialOut", c.partialOut), m.upload("PartialLSE", c.partialLSE)
	p := abi.MergeParams{
		PartialOut: outs.pointer(), PartialLSE: lses.pointer(),
		Out: outBuffer.pointer(), SlotBegin: m.upload("slot begin", c.slotBegin).pointer(),
		OutTokenStride: int32(c.stride), QHeads: int32(c.heads), Tokens: int32(c.tokens),
	}
	lseBuffer := outBuffer // as a stand-in: both are run and compared
	if c.withLSE {
		lseBuffer = m.alloc("LSE", 4*c.tokens*c.heads)
		p.LSE = lseBuffer.pointer()
	}
	if c.sinkLogits != nil {
		p.SinkLogits = m.upload("sink logits", float32s(c.sinkLogits)).pointer()
	}
	if m.err != nil {
		return nil, nil, m.err
	}
	return b.runTwice(ctx, outBuffer, lseBuffer, func() error {
		// A run before this one has used them up.
		if err := errors.Join(outs.write(c.partialOut), lses.write(c.partialLSE)); err != nil {
			return err
		}
		return b.kernels[e].Merge(0, p)
	})
}

// compare measures what merge wrote against its references.
func (c *mergeCase) compare(out, lse []byte, f numeric.Format) (measure, error) {
	m := measure{bound: f.Epsilon()}
	for t := range c.tokens {
		begin, end := 2*t*c.stride, min(len(out), 2*(t+1)*c.stride)
		row, gap := out[begin:begin+2*c.heads*c.dim], out[begin+2*c.heads*c.dim:end]
		if notPoison(gap) >= 0 {
			return m, wrongf("Out: token %d: the gap behind its row was written", t)
		}
		if c.slotBegin[t] == c.slotBegin[t+1] {
			if notPoison(row) >= 0 || c.withLSE && notPoison(lse[4*t*c.heads:][:4*c.heads]) >= 0 {
				return m, wrongf("token %d has no slots and was written", t)
			}
			continue
		}
		for h := range c.heads {
			ref, wantLSE, inputs := c.oracle(t, h)
			got := f.Decode(row[2*h*c.dim:][:2*c.dim])
			for i, want := range ref {
				e := math.Abs(got[i] - want)
				m.err2 += e * e
				m.ref2 += want * want
				m.largest = max(m.largest, e)
				m.rows++
				if limit := roundedOnce(f, want, inputs); !(e <= limit) {
					return m, wrongf("Out: token %d, head %d, element %d is %g, want %g; at most %.3e away is right", t, h, i, got[i], want, limit)
				}
			}
			if !c.withLSE {
				continue
			}
			gotLSE := float64(math.Float32frombits(binary.LittleEndian.Uint32(lse[4*(t*c.heads+h):])))
			e, err := offLSE(gotLSE, wantLSE, 0)
			m.lse = max(m.lse, e)
			if err != nil {
				return m, wrongf("token %d, head %d: %w", t, h, err)
			}
		}
	}
	return m, nil
}

// oracle is the reference of one token's one head, and the largest of its inputs.
func (c *mergeCase) oracle(token, head int) (out []float64, lse, largest float64) {
	var outs [][]float64
	var lses []float64
	for slot := int(c.slotBegin[token]); slot < int(c.slotBegin[token+1]); slot++ {
		part := make([]float64, c.dim)
		for i := range part {
			part[i] = float64(c.partialOut[(slot*c.heads+head)*c.dim+i])
			largest = max(largest, math.Abs(part[i]))
		}
		outs = append(outs, part)
		lses = append(lses, float64(c.partialLSE[slot*c.heads+head])*math.Ln2)
	}
	sink := math.Inf(-1)
	if c.sinkLogits != nil {
		sink = c.sinkLogits[head]
	}
	out, lse = oracle.Merge(outs, lses, sink)
	return out, lse, largest
}
