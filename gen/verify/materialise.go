package verify

import (
	"bytes"
	"context"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/tests/oracle"
)

// materialiseCase is copies of segments into pages of their sequences' own.
type materialiseCase struct {
	heads            int
	sources, targets int // pages of the caches that are read, and written
	tokens           []copied
	copies           []abi.Copy
	table            []int32
	k, v             []float64 // as stored, [tokens][KV heads][dim]
}

// copied is one token: from a slot, to a slot, at a position, of the segment's token local.
type copied struct{ from, to, position, local int }

// copiedSegment is a stored chunk at an offset. It goes into its sequence's pages from
// place begin on.
type copiedSegment struct{ tokens, offset, begin int }

// materialiseTrial copies segments of a few sequences into pages of the
// sequences' own. Its source is rounded already, so it is held to one rotation
// of that by the angle that its encoding still lacks; what is baked is copied.
func (b *bench) materialiseTrial(rng *rand.Rand) trial {
	c := b.dice(rng, 32, 64).materialiseCase()
	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		if len(c.copies) == 0 {
			return measure{bound: b.format.Epsilon()}, nil
		}
		ref := c.rotated(b.spec, e)
		source, want := b.newCache(c.heads, c.sources), b.newCache(c.heads, c.targets)
		for t, token := range c.tokens {
			k, v := t*c.heads*b.spec.Model.HeadDim, t*c.heads*b.spec.Model.VHeadDim
			source.k.set(token.from, c.k[k:])
			source.v.set(token.from, c.v[v:])
			want.k.set(token.to, ref[k:])
			want.v.set(token.to, c.v[v:])
		}
		gotK, gotV, err := c.run(ctx, b, e, source, want)
		if err != nil {
			return measure{}, err
		}
		return c.compare(b, e, gotK, gotV, want, ref)
	}
}

func (d dice) materialiseCase() materialiseCase {
	c := materialiseCase{heads: d.kvHeads()}
	sequences := d.copiedSegments()
	var sources, targets []int // tokens of each chunk, and up to the end of each sequence
	for _, segments := range sequences {
		end := 0
		for _, g := range segments {
			sources = append(sources, g.tokens)
			end = g.begin + g.tokens
		}
		targets = append(targets, end)
	}
	c.sources, c.targets = d.pageCount(sources), d.pageCount(targets)
	from, to := newHeap(d.Rand, d.spec.Cache, c.sources), newHeap(d.Rand, d.spec.Cache, c.targets)
	table := pageTable{rng: d.Rand}
	for i, segments := range sequences {
		dst := to.take(targets[i])
		dstPage := table.add(dst)
		for _, g := range segments {
			src := from.take(g.tokens)
			srcPage := table.add(src)
			for l := range g.tokens {
				c.tokens = append(c.tokens, copied{from.slot(src, l), to.slot(dst, g.begin+l), g.offset + l, l})
			}
			for begin := 0; begin < g.tokens; {
				n := min(1+d.length(g.tokens), g.tokens-begin)
				c.copies = append(c.copies, abi.Copy{
					SrcPage: srcPage, SrcBegin: int32(begin), DstPage: dstPage, DstBegin: int32(g.begin + begin),
					Count: int32(n), Offset: int32(g.offset),
				})
				begin += n
			}
		}
	}
	c.table = table.entries
	d.Shuffle(len(c.copies), func(i, j int) { c.copies[i], c.copies[j] = c.copies[j], c.copies[i] })
	c.k = d.normal(len(c.tokens)*c.heads*d.spec.Model.HeadDim, 1)
	c.v = d.normal(len(c.tokens)*c.heads*d.spec.Model.VHeadDim, 1)
	return c
}

// copiedSegments are those of each sequence, one behind the other.
func (d dice) copiedSegments() [][]copiedSegment {
	limit := min(d.size.tokens, d.top())
	var sequences [][]copiedSegment
	for range 1 + d.IntN(3) {
		var segments []copiedSegment
		end := d.IntN(2 * d.spec.Cache.PageSize) // the pages' first places may hold something already
		for range 1 + d.IntN(4) {
			tokens := d.length(limit)
			segments = append(segments, copiedSegment{tokens, d.IntN(d.top() - tokens + 1), end})
			end += tokens
		}
		sequences = append(sequences, segments)
	}
	return sequences
}

// pageCount is a number of pages that has room for each of the given numbers of tokens by itself.
func (d dice) pageCount(tokens []int) int {
	n := d.IntN(3)
	for _, t := range tokens {
		n += (t + d.spec.Cache.PageSize - 1) / d.spec.Cache.PageSize
	}
	return n
}

// rotated is K as the copies should have it: turned by the angle that the encoding lacks.
func (c *materialiseCase) rotated(s spec.Spec, e spec.Encoding) []float64 {
	angles := make([]int, len(c.tokens))
	for t, token := range c.tokens {
		switch e {
		case spec.Segment:
			angles[t] = token.position - token.local
		case spec.Raw:
			angles[t] = token.position
		}
	}
	return oracle.Rotate(s.Rope, c.k, c.heads, s.Model.HeadDim, angles)
}

// run returns the pages that materialise wrote, as many as want has.
func (c *materialiseCase) run(ctx context.Context, b *bench, e spec.Encoding, source, want cache) (k, v []byte, err error) {
	memory := newArena(b.dev)
	defer memory.free()
	m := allocations{arena: memory}
	srcK, srcV := m.upload("source K pages", source.k.data), m.upload("source V pages", source.v.data)
	dstK, dstV := m.alloc("K pages", len(want.k.data)), m.alloc("V pages", len(want.v.data))
	p := abi.MaterialiseParams{
		SrcK: srcK.pointer(), SrcV: srcV.pointer(), DstK: dstK.pointer(), DstV: dstV.pointer(),
		Copies: m.upload("copies", c.copies).pointer(), PageTable: m.upload("page table", c.table).pointer(),
		Rope: b.rope.pointer(), KVHeads: int32(c.heads), CopyCount: int32(len(c.copies)),
	}
	if m.err != nil {
		return nil, nil, m.err
	}
	if k, v, err = b.runTwice(ctx, dstK, dstV, func() error { return b.kernels[e].Materialise(0, p) }); err != nil {
		return nil, nil, err
	}
	if err := c.keysAlone(ctx, b, e, p, &m, k); err != nil {
		return nil, nil, err
	}
	if err := srcK.unchanged(source.k.data); err != nil {
		return nil, nil, err
	}
	return k, v, srcV.unchanged(source.v.data)
}

// keysAlone copies K once more, without V, to pages that are numbered as the page table's entries
// are, and holds it to the bits that it had with V.
func (c *materialiseCase) keysAlone(ctx context.Context, b *bench, e spec.Encoding, p abi.MaterialiseParams, m *allocations, k []byte) error {
	got, want := b.newCache(c.heads, len(c.table)).k, b.newCache(c.heads, len(c.table)).k
	with := b.newCache(c.heads, c.targets).k
	with.data = k
	size := b.spec.Cache.PageSize
	for _, copied := range c.copies {
		for t := range int(copied.Count) {
			place := int(copied.DstBegin) + t
			page := int(copied.DstPage) + place/size
			for h := range c.heads {
				copy(want.row(page*size+place%size, h), with.row(int(c.table[page])*size+place%size, h))
			}
		}
	}
	dst := m.alloc("K pages alone", len(want.data))
	if m.err != nil {
		return m.err
	}
	p.SrcV, p.DstV, p.DstK = 0, 0, dst.pointer()
	var err error
	if got.data, _, err = b.runTwice(ctx, dst, dst, func() error { return b.kernels[e].Materialise(0, p) }); err != nil {
		return err
	}
	if !bytes.Equal(got.data, want.data) {
		return wrongf("K pages: without V, the bits of byte %d differ", differ(got.data, want.data))
	}
	return nil
}

// compare measures what materialise wrote of K against its reference. V must be there
// bit for bit, and nothing else written.
func (c *materialiseCase) compare(b *bench, e spec.Encoding, gotK, gotV []byte, want cache, ref []float64) (measure, error) {
	if !bytes.Equal(gotV, want.v.data) {
		return measure{}, wrongf("V pages: the bits of byte %d differ", differ(gotV, want.v.data))
	}
	dim := b.spec.Model.HeadDim
	out := *want.k
	out.data = gotK
	m := measure{bound: b.format.Epsilon()}
	for t, token := range c.tokens {
		for h := range c.heads {
			at := (t*c.heads + h) * dim
			got := b.format.Decode(out.row(token.to, h))
			if err := b.rotatedRow(&m, got, ref[at:][:dim], c.k[at:], e != spec.Baked); err != nil {
				return m, wrongf("K pages: token %d at position %d, KV head %d: %w", t, token.position, h, err)
			}
			copy(out.row(token.to, h), want.k.row(token.to, h)) // judged: what is left must be equal
		}
	}
	if !bytes.Equal(out.data, want.k.data) {
		return m, wrongf("K pages: byte %d, of no token, was written", differ(out.data, want.k.data))
	}
	return m, nil
}
