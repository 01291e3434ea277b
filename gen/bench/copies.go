package bench

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// copyStep is the launches of a baseline that copies.
type copyStep struct {
	step         *step
	materialiser Materialiser
	params       abi.MaterialiseParams
	documents    int // that copy makes
}

func (c *copyStep) copy(stream cuda.Stream) error {
	return c.materialiser.Materialise(stream, c.params)
}

// copyLayout is sequences over pages of their own, and the copies that fill them.
type copyLayout struct {
	layouter
	chunks []abi.Copy // documents, that copying is timed for
	rest   []abi.Copy // what a server has in its pages already
}

// copyPerRequest copies each sequence's documents to pages of its own.
func (b copies) copyPerRequest(ctx context.Context, t *timer, p *Problem) (*copyStep, error) {
	l := copyLayout{layouter: layouter{pageSize: p.spec.Cache.PageSize}}
	for _, source := range p.layout.Sequences {
		sequence := source
		sequence.Segments = nil
		tokens := 0
		for _, segment := range source.Segments {
			if !segment.Own {
				tokens += int(segment.Tokens)
			}
		}
		all := l.segment(tokens)
		if p.spec.Masks.Window > 0 { // else a position of theirs changes nothing, and may be any
			all.Offset = source.Segments[0].Offset
		}
		sequence.Segments = append(sequence.Segments, all)
		at := int32(0)
		for _, segment := range source.Segments {
			if !segment.Own {
				l.chunks = addCopies(l.chunks, segment, all.Page, at)
				at += segment.Tokens
				continue
			}
			sequence.Segments = append(sequence.Segments, l.own(segment))
		}
		l.sequences = append(l.sequences, sequence)
	}
	return b.finish(ctx, t, p, l)
}

// own gives own tokens pages of their own, which a server has written baked.
func (l *copyLayout) own(segment schedule.Segment) schedule.Segment {
	to := l.segment(int(segment.Tokens))
	to.Offset, to.Own = segment.Offset, true
	l.rest = addCopies(l.rest, segment, to.Page, 0)
	return to
}

// placed is a document at an offset, which is what a copy of it is good for.
type placed struct{ document, offset int }

// copyWithReuse copies what no request before had at the same offset; sequences of the
// batch that want the same have one copy.
func (b copies) copyWithReuse(ctx context.Context, t *timer, p *Problem) (*copyStep, error) {
	l := copyLayout{layouter: layouter{pageSize: p.spec.Cache.PageSize}}
	kept := p.kept()
	made := map[placed]schedule.Segment{}
	documents := 0
	for i, source := range p.layout.Sequences {
		sequence, request := source, p.layout.requests[i]
		sequence.Segments = nil
		perDocument := (len(source.Segments) - 1) / len(request.documents)
		for j, document := range request.documents {
			chunks := source.Segments[j*perDocument : (j+1)*perDocument]
			key := placed{document, int(chunks[0].Offset)}
			segment, ok := made[key]
			if !ok {
				segment = l.segment(p.c.Sharing.Tokens)
				segment.Offset = chunks[0].Offset
				made[key] = segment
				list := &l.rest
				if !kept[key] {
					list = &l.chunks
					documents++
				}
				at := int32(0)
				for _, chunk := range chunks {
					*list = addCopies(*list, chunk, segment.Page, at)
					at += chunk.Tokens
				}
			}
			sequence.Segments = append(sequence.Segments, segment)
		}
		sequence.Segments = append(sequence.Segments, l.own(source.Segments[len(source.Segments)-1]))
		l.sequences = append(l.sequences, sequence)
	}
	c, err := b.finish(ctx, t, p, l)
	if err == nil {
		c.documents = documents
	}
	return c, err
}

// kept is the copies in an LRU list as large as all documents are once, after
// batches like the problem's.
func (p *Problem) kept() map[placed]bool {
	const batches = 8
	h := p.c.Sharing
	b := layouter{rng: rand.New(rand.NewPCG(p.seed, 3)), maxPosition: p.spec.Rope.MaxPosition}
	var list []placed // least recently used first
	for range batches * p.c.Batch {
		r := b.request(h)
		for i, document := range r.documents {
			p := placed{document, r.at + i*h.Tokens}
			if at := slices.Index(list, p); at >= 0 {
				list = slices.Delete(list, at, at+1)
			} else if len(list) >= h.Documents {
				list = list[1:]
			}
			list = append(list, p)
		}
	}
	kept := map[placed]bool{}
	for _, p := range list {
		kept[p] = true
	}
	return kept
}

// addCopies copies a segment to the place `at` of pages. A work item is small, so that
// they fill a device.
func addCopies(list []abi.Copy, from schedule.Segment, page, at int32) []abi.Copy {
	const most = 64 // tokens
	for begin := int32(0); begin < from.Tokens; begin += most {
		list = append(list, abi.Copy{
			SrcPage: from.Page, SrcBegin: begin, DstPage: page, DstBegin: at + begin,
			Count: min(most, from.Tokens-begin), Offset: from.Offset,
		})
	}
	return list
}

// finish makes the pages, fills all of them, and builds the work lists.
func (b copies) finish(ctx context.Context, t *timer, p *Problem, l copyLayout) (*copyStep, error) {
	// One page table: the documents' pages, then the copies'.
	first := int32(len(p.table))
	table := append(slices.Clone(p.table), Layout{Pages: l.pages}.table(rand.New(rand.NewPCG(p.seed, 4)))...)
	for i := range l.sequences {
		for j := range l.sequences[i].Segments {
			l.sequences[i].Segments[j].Page += first
		}
	}
	for _, list := range [][]abi.Copy{l.chunks, l.rest} {
		for i := range list {
			list[i].DstPage += first
		}
	}
	to := p.newCache(nil, table, l.pages)
	c := &copyStep{materialiser: b.materialiser}
	c.params = abi.MaterialiseParams{
		SrcK: p.cache.keys, SrcV: p.cache.values, DstK: to.keys, DstV: to.values, PageTable: to.table, Rope: p.rope,
		Copies: p.upload(l.chunks), CopyCount: int32(len(l.chunks)), KVHeads: int32(p.spec.Model.KVHeads),
	}
	rest := c.params
	rest.Copies, rest.CopyCount = p.upload(l.rest), int32(len(l.rest))
	if p.err != nil {
		return nil, p.err
	}
	var err error
	if c.step, err = p.attend(b.kernels, b.spec, l.sequences, to); err != nil {
		return nil, err
	}
	for _, params := range []abi.MaterialiseParams{c.params, rest} {
		if params.CopyCount == 0 {
			continue
		}
		if err := b.materialiser.Materialise(t.stream, params); err != nil {
			return nil, err
		}
	}
	return c, t.dev.Synchronize(ctx, t.stream)
}
