package bench

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// segmentTokens is the length of the chunks that a context is made of.
const segmentTokens = 512

// Layout is the sequences of a case and the pages of their KV.
type Layout struct {
	Sequences []schedule.Sequence
	Pages     int // of the page table, that the segments count in

	requests []request // of a case with Sharing: a sequence's, each
}

// request is what a sequence with Sharing holds.
type request struct {
	documents []int
	at        int // offset of the first document
	own       int // tokens
}

// NewLayout lays out a case: each sequence's context in chunks, its query behind
// it. Without Sharing the chunks are at arbitrary offsets, or, where a window looks at these,
// one behind the other; a prefill is a sequence's own tokens. The same seed gives the same
// layout.
func NewLayout(c Case, s spec.Spec, seed uint64) Layout {
	b := layouter{rng: rand.New(rand.NewPCG(seed, 2)), pageSize: s.Cache.PageSize, maxPosition: s.Rope.MaxPosition, inOrder: s.Masks.Window > 0}
	if c.Sharing.Documents > 0 {
		b.sharing(c)
	} else {
		for i := range c.Batch {
			b.alone(c, i)
		}
	}
	return Layout{Sequences: b.sequences, Pages: b.pages, requests: b.requests}
}

type layouter struct {
	rng                   *rand.Rand
	pageSize, maxPosition int
	inOrder               bool // chunks are one behind the other
	sequences             []schedule.Sequence
	requests              []request
	pages                 int
}

// segment takes pages.
func (b *layouter) segment(tokens int) schedule.Segment {
	segment := schedule.Segment{Page: int32(b.pages), Tokens: int32(tokens)}
	b.pages += (tokens + b.pageSize - 1) / b.pageSize
	return segment
}

// chunks is so many tokens, in pieces that a chunk holds.
func (b *layouter) chunks(tokens int) []schedule.Segment {
	var all []schedule.Segment
	for begin := 0; begin < tokens; begin += segmentTokens {
		all = append(all, b.segment(min(segmentTokens, tokens-begin)))
	}
	return all
}

// alone adds a sequence that shares nothing.
func (b *layouter) alone(c Case, index int) {
	sequence := schedule.Sequence{QueryBegin: int32(index * c.Query)}
	if c.Kind == spec.Prefill {
		own := b.segment(c.Context)
		own.Own = true
		sequence.Segments = []schedule.Segment{own}
	} else {
		sequence.Segments = b.chunks(c.Context)
		at := int32(0)
		for i := range sequence.Segments {
			segment := &sequence.Segments[i]
			if segment.Offset = at; !b.inOrder {
				segment.Offset = int32(b.rng.IntN(max(1, b.maxPosition-int(segment.Tokens))))
			}
			at += segment.Tokens
		}
	}
	for i := range c.Query {
		position := i
		if c.Kind != spec.Prefill {
			position += c.Context
		}
		sequence.Positions = append(sequence.Positions, int32(position))
	}
	b.sequences = append(b.sequences, sequence)
}

// sharing adds the sequences of a case whose documents are shared.
func (b *layouter) sharing(c Case) {
	documents := make([][]schedule.Segment, c.Sharing.Documents)
	for i := range c.Batch {
		r := b.request(c.Sharing)
		sequence := schedule.Sequence{QueryBegin: int32(i)}
		at := r.at
		for _, document := range r.documents {
			if documents[document] == nil {
				documents[document] = b.chunks(c.Sharing.Tokens)
			}
			for _, chunk := range documents[document] {
				chunk.Offset = int32(at)
				at += int(chunk.Tokens)
				sequence.Segments = append(sequence.Segments, chunk)
			}
		}
		last := b.segment(r.own)
		last.Offset, last.Own = int32(at), true
		sequence.Segments = append(sequence.Segments, last)
		sequence.Positions = []int32{int32(at + r.own - 1)}
		b.sequences = append(b.sequences, sequence)
		b.requests = append(b.requests, r)
	}
}

func (b *layouter) request(h Sharing) request {
	r := request{own: h.OwnFrom + b.rng.IntN(h.OwnTo-h.OwnFrom+1)}
	if h.Apart {
		r.at = b.rng.IntN(max(1, b.maxPosition-h.Held*h.Tokens-r.own))
	}
	r.documents = draw(b.rng, h)
	return r
}

// draw takes different documents, in an arbitrary order, each in proportion to its
// weight among those left: those with the largest log weight plus Gumbel noise.
func draw(rng *rand.Rand, h Sharing) []int {
	documents, keys := make([]int, h.Documents), make([]float64, h.Documents)
	for i := range documents {
		documents[i] = i
		keys[i] = -h.Zipf*math.Log(float64(i+1)) - math.Log(rng.ExpFloat64())
	}
	slices.SortFunc(documents, func(a, b int) int { return cmp.Compare(keys[b], keys[a]) })
	held := documents[:h.Held]
	rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	return held
}

// KVTokens counts the tokens of KV: what the sequences read if each reads its own,
// and how many different ones there are.
func (l Layout) KVTokens() (read, unique int) {
	seen := map[int32]bool{}
	for _, sequence := range l.Sequences {
		for _, segment := range sequence.Segments {
			read += int(segment.Tokens)
			if !seen[segment.Page] {
				seen[segment.Page] = true
				unique += int(segment.Tokens)
			}
		}
	}
	return read, unique
}

// seen is what a spec's window leaves of [Layout.KVTokens], and how many pairs there are of a
// query token and a key that it sees.
func (l Layout) seen(m spec.Masks) (read, unique int, pairs float64) {
	type ends struct{ first, last, tokens int }
	chunks := map[int32]ends{} // by the page that they begin in
	for _, sequence := range l.Sequences {
		lowest, queries := int(slices.Min(sequence.Positions)), len(sequence.Positions)
		for _, segment := range sequence.Segments {
			tokens, chunk := int(segment.Tokens), chunks[segment.Page]
			first, last := seenOf(segment, m, lowest, tokens)
			read += first + last
			chunks[segment.Page] = ends{max(chunk.first, first), max(chunk.last, last), tokens}
			for i, position := range sequence.Positions {
				end := tokens
				if segment.Own && m.Causal {
					end += i + 1 - queries
				}
				first, last := seenOf(segment, m, int(position), end)
				pairs += float64(first + last)
			}
		}
	}
	for _, chunk := range chunks {
		unique += min(chunk.first+chunk.last, chunk.tokens)
	}
	return read, unique, pairs
}

// seenOf is how many of a segment's first tokens, up to end, a query token at a position sees:
// at their beginning, sinks that its window does not reach, and at their end.
func seenOf(segment schedule.Segment, m spec.Masks, position, end int) (first, last int) {
	offset := int(segment.Offset)
	begin := min(max(position-m.Window+1-offset, 0), end)
	return min(max(m.SinkTokens-offset, 0), begin), end - begin
}

// table is a page table with the pages in an arbitrary order.
func (l Layout) table(rng *rand.Rand) []int32 {
	table := make([]int32, l.Pages)
	for i, p := range rng.Perm(l.Pages) {
		table[i] = int32(p)
	}
	return table
}
