package serve_test

import (
	"testing"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// BenchmarkSchedule is a decode step of 256 sequences of 19 shared documents of
// 512 tokens each, for Llama-3-8B's shape on one layer, cut as
// for a GPU of 264 blocks: all of Schedule, and Abort, without kernels.
func BenchmarkSchedule(b *testing.B) {
	m := toy.Small()
	m.Layers, m.PageSize, m.MaxPosition = 1, 16, 0
	m.Rope.RotaryDim, m.Rope.MaxPosition = 0, 0
	m.KVHeads, m.Group = 1, 4
	bench := newBench(b, m, serve.Options{Pages: 8000})
	bench.Trusting = true
	var chunks []*kvcache.Chunk
	for i := range 50 {
		chunks = append(chunks, bench.Register(b, toy.Document(uint64(i), 512)))
	}
	var batch []serve.Entry
	for i := range 256 {
		held := make([]*kvcache.Chunk, 19)
		for j := range held {
			held[j] = chunks[(7*i+j)%len(chunks)]
		}
		s, err := bench.Engine.Open(kvcache.Pack(held...), kvcache.Packed)
		if err != nil {
			b.Fatal(err)
		}
		batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
	}
	b.ReportAllocs()
	for b.Loop() {
		s, err := bench.Engine.Schedule(b.Context(), batch)
		if err != nil {
			b.Fatal(err)
		}
		s.Abort()
	}
}
