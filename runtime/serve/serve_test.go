package serve_test

import (
	"bytes"
	"testing"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// eachModel runs a test with models of every encoding and mask.
func eachModel(t *testing.T, test func(t *testing.T, m serve.Model)) {
	for _, c := range []struct {
		name   string
		change func(*serve.Model)
	}{
		{"segment", func(*serve.Model) {}},
		{"raw", func(m *serve.Model) { m.Encoding = "raw" }},
		{"window", func(m *serve.Model) { m.Window, m.SinkTokens = 20, 3 }},
		{"not causal", func(m *serve.Model) { m.Causal = false }},
		{"one layer, wide group", func(m *serve.Model) { m.Layers, m.KVHeads, m.Group = 1, 1, 8 }},
		{"long documents are split", func(m *serve.Model) { m.KVHeads = 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := toy.Small()
			c.change(&m)
			test(t, m)
		})
	}
}

// A request over two documents in any order, one of them twice, with a long
// question, then tokens one by one and a few at a time.
func TestRequest(t *testing.T) {
	eachModel(t, testRequest)
}

func testRequest(t *testing.T, m serve.Model) {
	b := newBench(t, m, serve.Options{Pages: 1000})
	d1, d2 := toy.Document(1, 37), toy.Document(2, 270)
	c1, c2 := b.Register(t, d1), b.Register(t, d2)
	s, err := b.Engine.Open([]kvcache.Placement{{Chunk: c2, Offset: 100}, {Chunk: c1, Offset: kvcache.Packed}, {Chunk: c2, Offset: 5}}, kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	r := &toy.Request{Segments: []toy.Placed{{Tokens: d2, Offset: 100}, {Tokens: d1, Offset: 370}, {Tokens: d2, Offset: 5}}, Offset: 407}
	c1.Release()
	c2.Release()
	for i, n := range []int{33, 1, 3, 17, 1} {
		tokens := toy.Document(uint64(100+i), n)
		outs, err := b.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: n}}, tokens)
		if err != nil {
			t.Fatal(err)
		}
		r.Own = append(r.Own, tokens...)
		if err := b.Compare(r, n, outs, 0); err != nil {
			t.Fatalf("step %d, %d tokens: %v", i, n, err)
		}
	}
	if s.Tokens() != len(r.Own) || s.Next() != r.Offset+len(r.Own) {
		t.Errorf("%d own tokens, next at %d", s.Tokens(), s.Next())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if st := b.Engine.Cache().Stats(); st.PagesUsed != st.PagesEvictable || st.Encodes != 2 {
		t.Errorf("%+v", st)
	}
}

// A sequence gives the same bits alone, in a batch of 64 of all sorts, and after
// its documents were evicted and came back: without shared decode, and with it
// where that is bitwise.
func TestSameBits(t *testing.T) {
	m := toy.Small()
	options := serve.Options{Pages: 6000, HostBytes: 1 << 30}
	t.Run("without shared decode", func(t *testing.T) {
		dev := cpu.Open(cpu.Options{Workers: 2})
		testSameBits(t, benchOf(t, dev, unshared{cpuKernels(t, dev, m)}, m, options))
	})
	t.Run("bitwise", func(t *testing.T) {
		m.Sharing = "bitwise"
		testSameBits(t, newBench(t, m, options))
	})
}

func testSameBits(t *testing.T, b *toy.Bench) {
	docs := [][]int32{toy.Document(1, 150), toy.Document(2, 41), toy.Document(3, 290)}
	chunks := func() []*kvcache.Chunk {
		var held []*kvcache.Chunk
		for _, d := range docs {
			held = append(held, b.Register(t, d))
		}
		return held
	}
	// run answers a question and three tokens after it, alone or with others.
	run := func(others int) [][]byte {
		held := chunks()
		var batch []serve.Entry
		var all [][]byte
		for i := range others + 1 {
			placements := kvcache.Pack(held[2], held[0], held[1])
			if i != others/2 { // the one that is compared is in the middle
				placements = kvcache.Pack(held[i%3], held[(i/3)%3])
			}
			s, err := b.Engine.Open(placements, kvcache.Packed)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			batch = append(batch, serve.Entry{Sequence: s})
		}
		for _, c := range held {
			c.Release()
		}
		for step, n := range []int{70, 1, 2, 1} {
			var tokens []int32
			row := 0
			for i := range batch {
				batch[i].Tokens = 1 + (i*7+step)%9
				if i == others/2 {
					batch[i].Tokens = n
					row = len(tokens)
				}
				tokens = append(tokens, toy.Document(uint64(step), batch[i].Tokens)...)
			}
			outs, err := b.Step(t.Context(), batch, tokens)
			if err != nil {
				t.Fatal(err)
			}
			size := 2 * b.Model.KVHeads * b.Model.Group * b.Model.VHeadDim
			for _, out := range outs {
				all = append(all, out[row*size:][:n*size])
			}
		}
		return all
	}
	alone := run(0)
	same := func(name string, got [][]byte) {
		t.Helper()
		for i := range alone {
			if !bytes.Equal(alone[i], got[i]) {
				t.Errorf("%s: step %d, layer %d: other bits than alone", name, i/b.Model.Layers, i%b.Model.Layers)
			}
		}
	}
	same("again", run(0))
	same("in a batch of 64", run(63))
	encodes := b.Engine.Cache().Stats().Encodes
	for _, d := range docs {
		id := b.Engine.Cache().Key(kvcache.Document{Tokens: d}).ID()
		if err := b.Engine.Cache().Evict(id); err != nil {
			t.Fatal(err)
		}
	}
	if st := b.Engine.Cache().Stats(); st.PagesUsed != 0 {
		t.Errorf("%d pages are used after all was evicted", st.PagesUsed)
	}
	same("after evict and restore", run(0))
	if st := b.Engine.Cache().Stats(); st.Encodes != encodes || st.Restores != int64(len(docs)) {
		t.Errorf("%d encodes, %d before the eviction; %d restores of %d", st.Encodes, encodes, st.Restores, len(docs))
	}
}
