package serve_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// A conversation: a question, an answer, documents, the next question and so on,
// then two ways to go on from there, and one that goes back.
func TestPlace(t *testing.T) {
	eachModel(t, testPlace)
}

func testPlace(t *testing.T, m serve.Model) {
	b := newBench(t, m, serve.Options{Pages: 1000})
	d1, d2 := toy.Document(1, 37), toy.Document(2, 270)
	c1, c2 := b.Register(t, d1), b.Register(t, d2)
	s, err := b.Engine.Open(kvcache.Pack(c1), kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	r := &toy.Request{Segments: []toy.Placed{{Tokens: d1}}, Offset: 37}
	seed := uint64(0)
	step := func(s *serve.Sequence, r *toy.Request, n int) {
		t.Helper()
		seed++
		tokens := toy.Document(seed, n)
		outs, err := b.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: n}}, tokens)
		if err != nil {
			t.Fatal(err)
		}
		r.Own = append(r.Own[:len(r.Own):len(r.Own)], tokens...)
		if err := b.Compare(r, n, outs, 0); err != nil {
			t.Fatalf("step %d, %d tokens: %v", seed, n, err)
		}
	}
	place := func(placements []kvcache.Placement, own, wantOwn int, segments ...toy.Placed) {
		t.Helper()
		if err := s.Place(placements, own); err != nil {
			t.Fatal(err)
		}
		r.Place(segments...)
		if r.Offset = wantOwn; s.Next() != wantOwn {
			t.Fatalf("own tokens go on at %d, want %d", s.Next(), wantOwn)
		}
	}
	step(s, r, 33)
	step(s, r, 1) // up to position 71
	place(kvcache.Pack(c2, c1), kvcache.Packed, 378, toy.Placed{Tokens: d2, Offset: 71}, toy.Placed{Tokens: d1, Offset: 341})
	step(s, r, 17)
	step(s, r, 3) // up to position 398
	place([]kvcache.Placement{{Chunk: c2, Offset: 5}}, kvcache.Packed, 398, toy.Placed{Tokens: d2, Offset: 5})
	place(kvcache.Pack(c1), 500, 500, toy.Placed{Tokens: d1, Offset: 398})
	step(s, r, 1)

	fork, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	forked := *r
	step(fork, &forked, 2)
	step(s, r, 20)
	for _, n := range []int{54, 30, 34} { // the chunks behind the last token of those that stay, stay
		if n > fork.Tokens() {
			step(fork, &forked, n-fork.Tokens())
		}
		if err := fork.Truncate(n); err != nil {
			t.Fatal(err)
		}
		forked.Truncate(n)
		step(fork, &forked, 3)
		step(s, r, 1)
	}
	// A step that is aborted leaves what was placed before it.
	place(kvcache.Pack(c1), kvcache.Packed, 561, toy.Placed{Tokens: d1, Offset: 524})
	aborted, err := b.Engine.Schedule(t.Context(), []serve.Entry{{Sequence: s, Tokens: 2}})
	if err != nil {
		t.Fatal(err)
	}
	aborted.Abort()
	step(s, r, 2)
	for _, s := range []*serve.Sequence{s, fork} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	c1.Release()
	c2.Release()
	if st := b.Engine.Cache().Stats(); st.PagesUsed != st.PagesEvictable || st.PagesUnshared != 0 || st.Encodes != 2 {
		t.Errorf("left over: %+v", st)
	}
}

// What a fork has in common with where it came from is read once, own tokens before
// the last documents included.
func TestForksShareOwnTokens(t *testing.T) {
	m := toy.Small()
	m.Sharing = "bitwise" // short documents: fastest would share none
	b := newBench(t, m, serve.Options{Pages: 1000})
	s, err := b.Engine.Open(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	question := toy.Document(1, 60)
	if _, err := b.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: 60}}, question); err != nil {
		t.Fatal(err)
	}
	if err := s.Place(nil, kvcache.Packed); err != nil {
		t.Fatal(err)
	}
	var batch []serve.Entry
	for range 5 {
		fork, err := s.Fork()
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, serve.Entry{Sequence: fork, Tokens: 1})
	}
	step, err := b.Engine.Schedule(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	defer step.Abort()
	tokens := toy.Document(2, 5)
	outs, err := b.Forward(t.Context(), step, tokens)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tokens {
		r := &toy.Request{Segments: []toy.Placed{{Tokens: question, Own: true}}, Offset: 60, Own: tokens[i : i+1]}
		if err := b.Compare(r, 1, outs, i); err != nil {
			t.Error(err)
		}
	}
	if got, want := step.Spared(), 4*60*b.Engine.Cache().Config().Shape.PageBytes()/int64(m.PageSize); got != want {
		t.Errorf("%d bytes spared, want %d", got, want)
	}
}

// An agent asks, reads what its tool has found, and answers.
func ExampleSequence_Place() {
	ctx := context.Background()
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	m := toy.Small()
	kernels, err := cpu.NewKernels(dev, cpu.Config{
		Group: m.Group, HeadDim: m.HeadDim, VHeadDim: m.VHeadDim, Element: cpu.BF16, Rope: m.Rope, PageSize: m.PageSize, Encoding: cpu.Segment,
	})
	check(err)
	engine, err := serve.New(dev, kernels, m, serve.Options{Pages: 100})
	check(err)
	defer engine.Close()
	model := toy.New(dev, engine, m)

	s, err := engine.Open(nil, 0)
	check(err)
	generate := func(tokens int) {
		_, err := model.Step(ctx, []serve.Entry{{Sequence: s, Tokens: tokens}}, make([]int32, tokens))
		check(err)
	}
	generate(20) // the question, and a call of a tool
	page := make([]int32, 100)
	found, err := engine.Register(ctx, page, model.Encode(page)) // once, whoever reads it
	check(err)
	check(s.Place(kvcache.Pack(found), kvcache.Packed)) // at 20 to 119
	found.Release()
	generate(10) // the answer
	fmt.Println(s.Tokens(), "own tokens, the next one at", s.Next())
	// Output: 30 own tokens, the next one at 130
}
