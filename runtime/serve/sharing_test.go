package serve_test

import (
	"testing"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// A thousand sequences that hold a document, each at an offset of its own, take the
// document's pages once, and those of their own tokens.
func TestOneCopy(t *testing.T) {
	const sequences, tokens = 1000, 2000
	m := toy.Tiny()
	b := newBench(t, m, serve.Options{Pages: 2 * sequences})
	b.Trusting = true
	doc := toy.Document(1, tokens)
	chunk := b.Register(t, doc)
	var batch []serve.Entry
	for i := range sequences {
		s, err := b.Engine.Open([]kvcache.Placement{{Chunk: chunk, Offset: i % 1000}}, kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
	}
	chunk.Release()
	once := tokens / m.PageSize
	if s := b.Engine.Cache().Stats(); s.PagesUsed != once || s.PagesUnshared != sequences*once || s.Sequences != sequences {
		t.Errorf("%+v, want %d pages used", s, once)
	}
	// They are served from that copy.
	question := toy.Document(2, sequences)
	outs, err := b.Step(t.Context(), batch, question)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 1, 499, 999} {
		r := &toy.Request{Segments: []toy.Placed{{Tokens: doc, Offset: i % 1000}}, Offset: i%1000 + tokens, Own: question[i : i+1]}
		if err := b.Compare(r, 1, outs, i); err != nil {
			t.Errorf("sequence %d: %v", i, err)
		}
	}
	s := b.Engine.Cache().Stats()
	if s.PagesUsed != once+sequences || s.PagesUnshared != sequences*(once+1) {
		t.Errorf("with a token each: %+v", s)
	}
	bytes := b.Engine.Cache().Config().Shape.PageBytes()
	t.Logf("%d sequences that hold a document of %d tokens: %d KiB of KV, %d with a copy each",
		sequences, tokens, int64(s.PagesUsed)*bytes>>10, int64(s.PagesUnshared)*bytes>>10)
}
