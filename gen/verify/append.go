package verify

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/tests/oracle"
)

// appendCase is tokens at random positions into random places of pages; some tokens are
// skipped.
type appendCase struct {
	tokens, heads    int
	k, v             []float64 // [tokens][KV heads][dim]
	kStride, vStride int
	pageCount        int
	slots, positions []int32
}

// appendTrial holds V and what is not rotated of K to their bits.
func (b *bench) appendTrial(rng *rand.Rand) trial {
	c := b.dice(rng).appendCase()
	rotated := oracle.Rotate(b.spec.Rope, c.k, c.heads, b.spec.Model.HeadDim, ints(c.positions))
	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		ref := rotated
		if e == spec.Raw {
			ref = c.k
		}
		want := b.newCache(c.heads, c.pageCount)
		for t, slot := range c.slots {
			if slot >= 0 {
				want.k.set(int(slot), ref[t*c.heads*b.spec.Model.HeadDim:])
				want.v.set(int(slot), c.v[t*c.heads*b.spec.Model.VHeadDim:])
			}
		}
		gotK, gotV, err := c.run(ctx, b, e, want)
		if err != nil {
			return measure{}, err
		}
		return c.compare(b, e, gotK, gotV, want, ref)
	}
}

func (d dice) appendCase() appendCase {
	model, size := d.spec.Model, d.spec.Cache.PageSize
	c := appendCase{heads: d.kvHeads()}
	c.tokens = 1 + d.length(d.size.tokens-1)
	c.k = d.normal(c.tokens*c.heads*model.HeadDim, 1)
	c.v = d.normal(c.tokens*c.heads*model.VHeadDim, 1)
	c.kStride, c.vStride = d.stride(c.heads*model.HeadDim), d.stride(c.heads*model.VHeadDim)
	c.pageCount = (c.tokens+size-1)/size + d.IntN(3)
	c.slots, c.positions = make([]int32, c.tokens), make([]int32, c.tokens)
	places := d.Perm(c.pageCount * size)
	for t := range c.tokens {
		c.slots[t] = int32(places[t])
		if d.oneIn(8) {
			c.slots[t] = -1 - d.Int32N(100)
		}
		c.positions[t] = d.Int32N(int32(d.top()))
	}
	return c
}

// run returns the pages that append wrote, as many as want has.
func (c *appendCase) run(ctx context.Context, b *bench, e spec.Encoding, want cache) (k, v []byte, err error) {
	memory := newArena(b.dev)
	defer memory.free()
	model := b.spec.Model
	m := allocations{arena: memory}
	kCache, vCache := m.alloc("K cache", len(want.k.data)), m.alloc("V cache", len(want.v.data))
	p := abi.AppendParams{
		K:      m.upload("K", strided(b.format, c.k, c.heads*model.HeadDim, c.kStride)).pointer(),
		V:      m.upload("V", strided(b.format, c.v, c.heads*model.VHeadDim, c.vStride)).pointer(),
		KCache: kCache.pointer(), VCache: vCache.pointer(),
		Slots: m.upload("slots", c.slots).pointer(), Rope: b.rope.pointer(),
		KTokenStride: int32(c.kStride), VTokenStride: int32(c.vStride), KVHeads: int32(c.heads), Tokens: int32(c.tokens),
	}
	if e != spec.Raw {
		p.Positions = m.upload("positions", c.positions).pointer()
	}
	if m.err != nil {
		return nil, nil, m.err
	}
	return b.runTwice(ctx, kCache, vCache, func() error { return b.kernels[e].Append(0, p) })
}

// compare measures what append wrote of K against its reference. V must be there bit
// for bit, and nothing else written.
func (c *appendCase) compare(b *bench, e spec.Encoding, gotK, gotV []byte, want cache, ref []float64) (measure, error) {
	if !bytes.Equal(gotV, want.v.data) {
		return measure{}, wrongf("V cache: the bits of byte %d differ", differ(gotV, want.v.data))
	}
	dim := b.spec.Model.HeadDim
	out := *want.k
	out.data = gotK
	m := measure{bound: b.format.Epsilon()}
	for t, slot := range c.slots {
		if slot < 0 {
			continue
		}
		for h := range c.heads {
			at := (t*c.heads + h) * dim
			got := b.format.Decode(out.row(int(slot), h))
			if err := b.rotatedRow(&m, got, ref[at:][:dim], c.k[at:], e != spec.Raw); err != nil {
				return m, wrongf("K cache: token %d at position %d, KV head %d: %w", t, c.positions[t], h, err)
			}
			copy(out.row(int(slot), h), want.k.row(int(slot), h)) // judged: what is left must be equal
		}
	}
	if !bytes.Equal(out.data, want.k.data) {
		return m, wrongf("K cache: byte %d, of no token, was written", differ(out.data, want.k.data))
	}
	return m, nil
}

// rotatedRow measures one row of K that a kernel rotated from in (or copied).
func (b *bench) rotatedRow(m *measure, got, ref, in []float64, rotated bool) error {
	for d, want := range ref {
		limit := 0.0
		if pair := b.partner(d); rotated && pair >= 0 {
			limit = roundedOnce(b.format, want, math.Abs(in[d])+math.Abs(in[pair]))
		}
		e := math.Abs(got[d] - want)
		m.err2 += e * e
		m.ref2 += want * want
		m.largest = max(m.largest, e)
		m.rows++
		if !(e <= limit) {
			return wrongf("element %d is %g, want %g; at most %.3e away is right", d, got[d], want, limit)
		}
	}
	return nil
}

// partner is the dimension that d is rotated with, or -1.
func (b *bench) partner(d int) int {
	n := b.spec.Rope.RotaryDim
	switch {
	case d >= n:
		return -1
	case b.spec.Rope.Pairing == "interleaved":
		return d ^ 1
	default:
		return (d + n/2) % n
	}
}

// runTwice runs a kernel that writes two buffers two times, for the same bits.
func (b *bench) runTwice(ctx context.Context, first, second *buffer, launch func() error) ([]byte, []byte, error) {
	var results [2][2][]byte
	for run := range results {
		for _, written := range []*buffer{first, second} {
			if err := written.poison(); err != nil {
				return nil, nil, err
			}
		}
		if err := launch(); err != nil {
			return nil, nil, wrongf("launch: %w", err)
		}
		if err := b.dev.Synchronize(ctx, 0); err != nil {
			return nil, nil, wrongf("run: %w", err)
		}
		for i, written := range []*buffer{first, second} {
			var err error
			if results[run][i], err = written.download(); err != nil {
				return nil, nil, err
			}
		}
	}
	for i := range 2 {
		if !bytes.Equal(results[0][i], results[1][i]) {
			return nil, nil, wrongf("two runs gave different bits")
		}
	}
	return results[0][0], results[0][1], nil
}

// differ is the first index at which a and b differ.
func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func ints(x []int32) []int {
	y := make([]int, len(x))
	for i := range x {
		y[i] = int(x[i])
	}
	return y
}
