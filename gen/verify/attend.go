package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/tests/oracle"
)

// attendTrial is one case of an attending kind. Pages are filled here
// as append should, so that a mistake of append's is not one of attend's.
func (b *bench) attendTrial(rng *rand.Rand, kind spec.Kind) trial {
	tile := b.kernels[spec.Baked].Tiles[kind]
	edges := []int{tile.Rows / b.spec.Model.Group(), tile.Keys}
	if own := b.kernels[b.spec.Cache.Encoding].Tiles[kind]; own != (spec.Tile{}) && own != tile {
		edges = append(edges, own.Rows/b.spec.Model.Group(), own.Keys)
	}
	return b.trialOf(b.dice(rng, edges...).attendCase(kind, tile))
}

// trialOf is the trial of a case that is made.
func (b *bench) trialOf(c attendCase) trial {
	refs := c.oracle(b.spec)
	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		memory := newArena(b.dev)
		defer memory.free()
		l := newLayout(&c, b.spec, b.format, e)
		l.encode(&c, b.spec, e)
		run, err := b.newRun(memory, &c, l, e)
		if err != nil {
			return measure{}, err
		}
		first, err := run.first(ctx)
		if err != nil {
			return measure{}, err
		}
		m, err := c.compare(first, refs, b.spec, b.format)
		if err != nil {
			return m, err
		}
		all, err := run.again(ctx, first)
		if err != nil {
			return measure{}, err
		}
		if c.alone >= 0 {
			one, err := run.launch(ctx, []int{c.alone})
			if err != nil {
				return measure{}, err
			}
			if err := c.sameSequence(all, one, b.spec.Model.VHeadDim); err != nil {
				return measure{}, err
			}
		}
		if e == spec.Raw {
			m.sameBits, err = b.rawBits(ctx, memory, &c, all)
		}
		return m, err
	}
}

// rotatedAs is the encoding to which a kind rotates its tiles of raw keys.
func rotatedAs(kind spec.Kind) spec.Encoding {
	if kind == spec.SharedDecode {
		return spec.Segment
	}
	return spec.Baked
}

// rawBits holds the raw kernel, which rotates K tiles, to the bits of the baked
// kernel on pages that append rotated with the same arithmetic; that of shared decode
// to the segment kernel's, in its partial results. It has nothing to say where the two
// have different tiles, or share out keys among another number of warps, nor of family sm90
// and bf16, whose keys become fp16.
func (b *bench) rawBits(ctx context.Context, memory *arena, c *attendCase, raw outputs) (bool, error) {
	e := rotatedAs(c.kind)
	if !sameBits(b.kernels[spec.Raw], b.kernels[e], c.kind, b.spec.Whole(c.kind)) {
		return false, nil
	}
	l := newLayout(c, b.spec, b.format, e)
	run, err := b.newRun(memory, c, l, e)
	if err != nil {
		return false, err
	}
	if err := run.append(ctx); err != nil {
		return false, err
	}
	run.readsPartials, run.partsPerItem = c.kind == spec.SharedDecode, c.partGroups(b.spec)[1]
	rotated, err := run.launch(ctx, c.everySequence())
	if err != nil {
		return false, err
	}
	same := bytes.Equal(raw.out, rotated.out) && bytes.Equal(raw.lse, rotated.lse)
	if c.kind == spec.SharedDecode {
		same = bytes.Equal(raw.partials, rotated.partials)
	}
	if !same {
		return false, wrongf("the bits are not those of %s on pages that append wrote", e)
	}
	return true, nil
}

// sameBits reports whether two kernels of a kind round the same things and add them up in the same
// order. whole is whether those that take items of several parts walk them as one.
func sameBits(a, b Kernels, kind spec.Kind, whole bool) bool {
	x, y := a.Tiles[kind], b.Tiles[kind]
	if whole && a.Folds[kind] != b.Folds[kind] {
		return false
	}
	return x.Rows == y.Rows && x.Keys == y.Keys && a.Arithmetic[kind] == b.Arithmetic[kind]
}

func (c *attendCase) everySequence() []int {
	all := make([]int, len(c.sequences))
	for i := range all {
		all[i] = i
	}
	return all
}

// oracle is the reference of every sequence.
func (c *attendCase) oracle(s spec.Spec) []oracle.Result {
	refs := make([]oracle.Result, len(c.sequences))
	for i, sequence := range c.sequences {
		p := oracle.Problem{
			QueryHeads: c.queryHeads, KVHeads: c.kvHeads, HeadDim: s.Model.HeadDim, VHeadDim: s.Model.VHeadDim,
			Rope: s.Rope, Scale: s.Scale, SoftCap: s.Masks.SoftCap,
			Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens, SinkLogits: c.sinkLogits,
			Q:         c.q[sequence.queryBegin*c.queryHeads*s.Model.HeadDim:][:len(sequence.positions)*c.queryHeads*s.Model.HeadDim],
			Positions: sequence.positions,
		}
		for _, placed := range sequence.segments {
			chunk := c.chunks[placed.chunk]
			causal := oracle.All
			if placed.own && s.Masks.Causal {
				causal = chunk.tokens - len(sequence.positions)
			}
			p.Segments = append(p.Segments, oracle.Segment{Offset: placed.offset, Causal: causal, K: chunk.k, V: chunk.v})
		}
		refs[i] = oracle.Attend(p)
	}
	return refs
}

// bounds are what this case's data allows.
func (c *attendCase) bounds(s spec.Spec, f numeric.Format) attendBounds {
	k := 0.0
	for _, chunk := range c.chunks {
		k = max(k, largestNorm(chunk.k, s.Model.HeadDim))
	}
	factor := max(1, s.Rope.AttentionFactor*s.Rope.AttentionFactor)
	return newAttendBounds(f, math.Abs(s.Scale)*factor, largestNorm(c.q, s.Model.HeadDim), k, s.Model.HeadDim, s.Masks.SinkLogits)
}

// compare measures what all sequences gave against their references.
func (c *attendCase) compare(got outputs, refs []oracle.Result, s spec.Spec, f numeric.Format) (measure, error) {
	bounds := c.bounds(s, f)
	m := measure{bound: bounds.whole, apart: c.sharp || c.loud}
	var all common
	dim := s.Model.VHeadDim
	for i, sequence := range c.sequences {
		for t := range sequence.positions {
			for h := range c.queryHeads {
				row := t*c.queryHeads + h
				ref := refs[i].Out[row*dim:][:dim]
				out := f.Decode(got.row(c, sequence.queryBegin+t, h, dim))
				var err2, ref2, along float64
				for d := range ref {
					e := math.Abs(out[d] - ref[d])
					err2 += e * e
					along += (out[d] - ref[d]) * ref[d]
					ref2 += ref[d] * ref[d]
					m.largest = max(m.largest, e)
				}
				m.err2 += err2
				m.ref2 += ref2
				m.rows++
				all.addOutput(along, ref2)
				if limit := bounds.row*math.Sqrt(ref2) + smallest(f, dim); !(math.Sqrt(err2) <= limit) {
					return m, wrongf("sequence %d, query token %d, head %d: the output is %.3e from the reference, whose norm is %.3e; at most %.3e is right",
						i, t, h, math.Sqrt(err2), math.Sqrt(ref2), limit)
				}
				if got.lse == nil {
					continue
				}
				lse, want := got.logSum(c, sequence.queryBegin+t, h), refs[i].LSE[row]
				all.addLSE(lse, want)
				e, err := offLSE(lse, want, bounds.lse)
				m.lse = max(m.lse, e)
				if err != nil {
					return m, wrongf("sequence %d, query token %d, head %d: %w", i, t, h, err)
				}
			}
		}
	}
	if c.capped {
		all.lseRows = 0 // rows turned to one key have its rounding error in common
	}
	return m, all.check(bounds, f)
}

// sameSequence holds the sequence that ran alone to its bits in the batch.
func (c *attendCase) sameSequence(all, one outputs, dim int) error {
	s := c.sequences[c.alone]
	for t := range s.positions {
		for h := range c.queryHeads {
			token := s.queryBegin + t
			if !bytes.Equal(all.row(c, token, h, dim), one.row(c, token, h, dim)) ||
				all.lse != nil && all.logSum(c, token, h) != one.logSum(c, token, h) {
				return wrongf("sequence %d, query token %d, head %d: alone it has other bits than in the batch", c.alone, t, h)
			}
		}
	}
	return nil
}

// outputs are the bytes that a launch wrote.
type outputs struct {
	out []byte // [tokens], OutTokenStride apart
	lse []byte // nil where it was not asked for

	partials []byte // of shared_decode's members
}

func (o outputs) row(c *attendCase, token, head, dim int) []byte {
	return o.out[2*(token*c.outStride+head*dim):][:2*dim]
}

func (o outputs) logSum(c *attendCase, token, head int) float64 {
	bits := binary.LittleEndian.Uint32(o.lse[4*(token*c.queryHeads+head):])
	return float64(math.Float32frombits(bits))
}

// largestNorm is the largest norm of a row of dim elements.
func largestNorm(x []float64, dim int) float64 {
	largest := 0.0
	for ; len(x) > 0; x = x[dim:] {
		sum := 0.0
		for _, e := range x[:dim] {
			sum += e * e
		}
		largest = max(largest, sum)
	}
	return math.Sqrt(largest)
}

// attendKernel is the launch of a kind.
func attendKernel(k Kernels, kind spec.Kind, p abi.AttendParams) error {
	switch kind {
	case spec.Prefill:
		return k.Prefill(0, p)
	case spec.Extend:
		return k.Extend(0, p)
	case spec.SharedDecode:
		return k.SharedDecode(0, p)
	default:
		return k.Decode(0, p)
	}
}
