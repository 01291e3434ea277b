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

// appendTrial is tokens at random positions into random places of pages; some
// tokens are skipped. V and what is not rotated of K must arrive bit for bit.
func (b *bench) appendTrial(rng *rand.Rand) trial {
	d := b.dice(rng)
	model, heads := b.spec.Model, d.kvHeads()
	tokens := 1 + d.length(d.size.tokens-1)
	k := d.normal(tokens*heads*model.HeadDim, 1)
	v := d.normal(tokens*heads*model.VHeadDim, 1)
	kStride, vStride := d.stride(heads*model.HeadDim), d.stride(heads*model.VHeadDim)
	pageCount := (tokens+b.spec.Cache.PageSize-1)/b.spec.Cache.PageSize + d.IntN(3)
	slots, positions := make([]int32, tokens), make([]int32, tokens)
	places := d.Perm(pageCount * b.spec.Cache.PageSize)
	for t := range tokens {
		slots[t] = int32(places[t])
		if d.oneIn(8) {
			slots[t] = -1 - d.Int32N(100)
		}
		positions[t] = d.Int32N(int32(d.top()))
	}
	rotated := oracle.Rotate(b.spec.Rope, k, heads, model.HeadDim, ints(positions))

	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		memory := newArena(b.dev)
		defer memory.free()
		wantK := newPages(b.spec.Cache, b.format, heads, model.HeadDim, pageCount)
		wantV := newPages(b.spec.Cache, b.format, heads, model.VHeadDim, pageCount)
		m := batch{arena: memory}
		kCache := m.alloc("K cache", len(wantK.data))
		vCache := m.alloc("V cache", len(wantV.data))
		p := abi.AppendParams{
			K:      m.upload("K", strided(b.format, k, heads*model.HeadDim, kStride)).pointer(),
			V:      m.upload("V", strided(b.format, v, heads*model.VHeadDim, vStride)).pointer(),
			KCache: kCache.pointer(), VCache: vCache.pointer(),
			Slots: m.upload("slots", slots).pointer(), Rope: b.rope.pointer(),
			KTokenStride: int32(kStride), VTokenStride: int32(vStride), KVHeads: int32(heads), Tokens: int32(tokens),
		}
		ref := rotated
		if e == spec.Raw {
			ref = k
		} else {
			p.Positions = m.upload("positions", positions).pointer()
		}
		if m.err != nil {
			return measure{}, m.err
		}
		gotK, gotV, err := b.runTwice(ctx, kCache, vCache, func() error { return b.kernels[e].Append(0, p) })
		if err != nil {
			return measure{}, err
		}

		for t, slot := range slots {
			if slot >= 0 {
				wantK.set(int(slot), ref[t*heads*model.HeadDim:])
				wantV.set(int(slot), v[t*heads*model.VHeadDim:])
			}
		}
		if !bytes.Equal(gotV, wantV.data) {
			return measure{}, wrongf("V cache: the bits of byte %d differ", differ(gotV, wantV.data))
		}
		out := *wantK
		out.data = gotK
		result := measure{bound: b.format.Epsilon()}
		for t, slot := range slots {
			if slot < 0 {
				continue
			}
			for h := range heads {
				at := (t*heads + h) * model.HeadDim
				got := b.format.Decode(out.row(int(slot), h))
				if err := b.rotatedRow(&result, got, ref[at:][:model.HeadDim], k[at:], e != spec.Raw); err != nil {
					return result, wrongf("K cache: token %d at position %d, KV head %d: %w", t, positions[t], h, err)
				}
				copy(out.row(int(slot), h), wantK.row(int(slot), h)) // judged: what is left must be equal
			}
		}
		if !bytes.Equal(out.data, wantK.data) {
			return result, wrongf("K cache: byte %d, of no token, was written", differ(out.data, wantK.data))
		}
		return result, nil
	}
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
