package demo

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/numeric"
)

// model is one attention layer's inputs: where a server projects a token's
// hidden state, it draws random vectors from the token's place in the workload.
type model struct {
	spec   spec.Spec
	format numeric.Format
	work   workload
	drawn  map[text]vectors
}

// text is a document, or a request's own tokens.
type text struct {
	own   bool
	index int // of the document or the request
}

// vectors are the un-rotated queries, keys and values of some tokens, in the
// element type: [tokens][heads][dim].
type vectors struct {
	tokens  int
	q, k, v []byte
}

func newModel(s spec.Spec, w workload) *model {
	m := &model{spec: s, format: numeric.BF16, work: w, drawn: map[text]vectors{}}
	if s.Model.DType == spec.FP16 {
		m.format = numeric.FP16
	}
	return m
}

func (m *model) document(d int) vectors {
	return m.vectors(text{false, d}, m.work.lengths[d])
}

// own is a request's question, and the tokens that it goes on for.
func (m *model) own(request int) vectors {
	return m.vectors(text{true, request}, m.work.Question+m.work.Decode)
}

func (m *model) vectors(t text, tokens int) vectors {
	if v, ok := m.drawn[t]; ok {
		return v
	}
	stream := uint64(2*t.index + 1)
	if t.own {
		stream++
	}
	rng := rand.New(rand.NewPCG(m.work.Seed, stream))
	normal := func(n int) []byte {
		x := make([]byte, 0, 2*n)
		for range n {
			x = binary.LittleEndian.AppendUint16(x, m.format.Bits(rng.NormFloat64()))
		}
		return x
	}
	s := m.spec.Model
	m.drawn[t] = vectors{
		tokens: tokens, q: normal(tokens * s.QueryHeads * s.HeadDim),
		k: normal(tokens * s.KVHeads * s.HeadDim), v: normal(tokens * s.KVHeads * s.VHeadDim),
	}
	return m.drawn[t]
}

// sinkLogits is one logit a query head, nil where the spec has none.
func (m *model) sinkLogits() []float32 {
	if !m.spec.Masks.SinkLogits {
		return nil
	}
	rng := rand.New(rand.NewPCG(m.work.Seed, 1<<63))
	x := make([]float32, m.spec.Model.QueryHeads)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// part is tokens from to to-1.
func (v vectors) part(from, to int) vectors {
	cut := func(x []byte) []byte { return x[len(x)/v.tokens*from : len(x)/v.tokens*to] }
	return vectors{to - from, cut(v.q), cut(v.k), cut(v.v)}
}

func join(all ...vectors) vectors {
	var tokens int
	var q, k, v [][]byte
	for _, x := range all {
		tokens += x.tokens
		q, k, v = append(q, x.q), append(k, x.k), append(v, x.v)
	}
	return vectors{tokens, slices.Concat(q...), slices.Concat(k...), slices.Concat(v...)}
}
