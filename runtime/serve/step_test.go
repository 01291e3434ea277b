package serve_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// Layers that are attended again give what they gave before.
func TestAttendedAgain(t *testing.T) {
	b := newBench(t, toy.Small(), serve.Options{Pages: 100})
	s, err := b.Engine.Open(kvcache.Pack(b.Register(t, toy.Document(1, 30))), kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	tokens := toy.Document(2, 9)
	run := func(forward func(step *serve.Step) [][]byte) [][]byte {
		t.Helper()
		step, err := b.Engine.Schedule(t.Context(), []serve.Entry{{Sequence: s, Tokens: len(tokens)}})
		if err != nil {
			t.Fatal(err)
		}
		defer step.Abort() // so that the next has the same tokens
		return forward(step)
	}
	inOrder := func(step *serve.Step) [][]byte {
		t.Helper()
		outs, err := b.Forward(t.Context(), step, tokens)
		if err != nil {
			t.Fatal(err)
		}
		return outs
	}
	want := run(inOrder)
	again := run(func(step *serve.Step) [][]byte {
		inOrder(step)
		return inOrder(step)
	})
	for layer := range want {
		if !bytes.Equal(want[layer], again[layer]) {
			t.Errorf("layer %d: other bits when it is attended again", layer)
		}
	}
}

func TestBaked(t *testing.T) {
	m := toy.Small()
	m.Encoding = "baked"
	b := newBench(t, m, serve.Options{Pages: 100})
	d := toy.Document(1, 10)
	c := b.Register(t, d)
	for _, c := range []struct {
		placements []kvcache.Placement
		want       string
	}{
		{[]kvcache.Placement{{Chunk: c, Offset: 3}}, "segment 0 is at offset 3: a chunk in the baked encoding stands at 0 only"},
		{kvcache.Pack(c, c), "segment 1 is at offset 10"},
		{[]kvcache.Placement{{}}, "segment 0: no chunk of this cache"},
	} {
		if _, err := b.Engine.Open(c.placements, kvcache.Packed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
	s, err := b.Engine.Open(kvcache.Pack(c), 15)
	if err != nil {
		t.Fatal(err)
	}
	r := &toy.Request{Segments: []toy.Placed{{Tokens: d, Offset: 0}}, Offset: 15, Own: toy.Document(2, 20)}
	outs, err := b.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: 20}}, r.Own)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Compare(r, 20, outs, 0); err != nil {
		t.Error(err)
	}

	// Own tokens before and behind a second chunk.
	if err := s.Place(kvcache.Pack(c), kvcache.Packed); err == nil || !strings.Contains(err.Error(), "is at offset 35") {
		t.Errorf("error %v", err)
	}
	if err := s.Place([]kvcache.Placement{{Chunk: c}}, kvcache.Packed); err != nil {
		t.Fatal(err)
	}
	r.Place(toy.Placed{Tokens: d})
	r.Own, r.Offset = toy.Document(3, 7), 35
	if outs, err = b.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: 7}}, r.Own); err != nil {
		t.Fatal(err)
	}
	if err := b.Compare(r, 7, outs, 0); err != nil {
		t.Error(err)
	}
}
