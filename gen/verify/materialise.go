package verify

import (
	"bytes"
	"context"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/tests/oracle"
)

// materialiseTrial copies segments of a few sequences into pages of the
// sequences' own. Its source is rounded already, so it is held to one rotation
// of that by the angle that its encoding still lacks; what is baked is copied.
func (b *bench) materialiseTrial(rng *rand.Rand) trial {
	d := b.dice(rng, 32, 64)
	model, heads := b.spec.Model, d.kvHeads()
	limit := min(d.size.tokens, d.top())

	// Each segment is a stored chunk [tokens] at an offset, and goes behind the
	// one before it.
	type segment struct {
		tokens, offset, source, target int
	}
	var sequences [][]segment
	var sources []int // tokens of the sources
	var targets []int // tokens of the sequences
	for range 1 + d.IntN(3) {
		var s []segment
		end := d.IntN(2 * b.spec.Cache.PageSize) // the pages' first places may hold something already
		for range 1 + d.IntN(4) {
			tokens := d.length(limit)
			s = append(s, segment{tokens, d.IntN(d.top() - tokens + 1), len(sources), end})
			sources = append(sources, tokens)
			end += tokens
		}
		sequences = append(sequences, s)
		targets = append(targets, end)
	}
	pagesOf := func(tokens []int) int {
		n := d.IntN(3)
		for _, t := range tokens {
			n += (t + b.spec.Cache.PageSize - 1) / b.spec.Cache.PageSize
		}
		return n
	}
	sourceCount, targetCount := pagesOf(sources), pagesOf(targets)
	sourceHeap, targetHeap := newHeap(rng, b.spec.Cache, sourceCount), newHeap(rng, b.spec.Cache, targetCount)

	// One token to copy: from a slot, to a slot, by what angle.
	type token struct {
		from, to, position, local int
	}
	var tokens []token
	var copies []abi.Copy
	table := pageTable{rng: rng}
	for i, s := range sequences {
		to := targetHeap.take(targets[i])
		dstPage := table.add(to)
		for _, g := range s {
			from := sourceHeap.take(g.tokens)
			srcPage := table.add(from)
			for l := range g.tokens {
				tokens = append(tokens, token{sourceHeap.slot(from, l), targetHeap.slot(to, g.target+l), g.offset + l, l})
			}
			for begin := 0; begin < g.tokens; {
				n := min(1+d.length(g.tokens), g.tokens-begin)
				copies = append(copies, abi.Copy{
					SrcPage: srcPage, SrcBegin: int32(begin), DstPage: dstPage, DstBegin: int32(g.target + begin),
					Count: int32(n), Offset: int32(g.offset),
				})
				begin += n
			}
		}
	}
	rng.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
	k := d.normal(len(tokens)*heads*model.HeadDim, 1) // as stored
	v := d.normal(len(tokens)*heads*model.VHeadDim, 1)

	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		result := measure{bound: b.format.Epsilon()}
		if len(copies) == 0 {
			return result, nil
		}
		memory := newArena(b.dev)
		defer memory.free()
		srcK := newPages(b.spec.Cache, b.format, heads, model.HeadDim, sourceCount)
		srcV := newPages(b.spec.Cache, b.format, heads, model.VHeadDim, sourceCount)
		wantK := newPages(b.spec.Cache, b.format, heads, model.HeadDim, targetCount)
		wantV := newPages(b.spec.Cache, b.format, heads, model.VHeadDim, targetCount)
		angles := make([]int, len(tokens))
		for t, token := range tokens {
			switch e {
			case spec.Segment:
				angles[t] = token.position - token.local
			case spec.Raw:
				angles[t] = token.position
			}
		}
		ref := oracle.Rotate(b.spec.Rope, k, heads, model.HeadDim, angles)
		for t, token := range tokens {
			srcK.set(token.from, k[t*heads*model.HeadDim:])
			srcV.set(token.from, v[t*heads*model.VHeadDim:])
			wantK.set(token.to, ref[t*heads*model.HeadDim:])
			wantV.set(token.to, v[t*heads*model.VHeadDim:])
		}
		m := batch{arena: memory}
		srcKBuffer, srcVBuffer := m.upload("source K pages", srcK.data), m.upload("source V pages", srcV.data)
		dstK, dstV := m.alloc("K pages", len(wantK.data)), m.alloc("V pages", len(wantV.data))
		p := abi.MaterialiseParams{
			SrcK: srcKBuffer.pointer(), SrcV: srcVBuffer.pointer(), DstK: dstK.pointer(), DstV: dstV.pointer(),
			Copies: m.upload("copies", copies).pointer(), PageTable: m.upload("page table", table.entries).pointer(),
			Rope: b.rope.pointer(), KVHeads: int32(heads), CopyCount: int32(len(copies)),
		}
		if m.err != nil {
			return measure{}, m.err
		}
		gotK, gotV, err := b.runTwice(ctx, dstK, dstV, func() error { return b.kernels[e].Materialise(0, p) })
		if err != nil {
			return measure{}, err
		}
		if err := srcKBuffer.unchanged(srcK.data); err != nil {
			return measure{}, err
		}
		if err := srcVBuffer.unchanged(srcV.data); err != nil {
			return measure{}, err
		}
		if !bytes.Equal(gotV, wantV.data) {
			return measure{}, wrongf("V pages: the bits of byte %d differ", differ(gotV, wantV.data))
		}
		out := *wantK
		out.data = gotK
		for t, token := range tokens {
			for h := range heads {
				at := (t*heads + h) * model.HeadDim
				got := b.format.Decode(out.row(token.to, h))
				if err := b.rotatedRow(&result, got, ref[at:][:model.HeadDim], k[at:], e != spec.Baked); err != nil {
					return result, wrongf("K pages: token %d at position %d, KV head %d: %w", t, token.position, h, err)
				}
				copy(out.row(token.to, h), wantK.row(token.to, h)) // judged: what is left must be equal
			}
		}
		if !bytes.Equal(out.data, wantK.data) {
			return result, wrongf("K pages: byte %d, of no token, was written", differ(out.data, wantK.data))
		}
		return result, nil
	}
}
