package serve_test

import (
	"testing"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// A server may be steps ahead of the device: Schedule does not wait for the steps
// before, whatever size they have, and their outputs are right.
func TestAhead(t *testing.T) {
	const steps, sequences = 60, 5
	ctx := t.Context()
	m := toy.Small()
	dev := cpu.Open(cpu.Options{Workers: 2})
	defer dev.Close()
	f := newFaulty(dev, cpuKernels(t, dev, m), func(int, string) bool { return false })
	e, err := serve.New(faultyCopier{f}, f, m, serve.Options{Pages: 2000})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b := toy.New(dev, e, m)
	doc := toy.Document(1, 300)
	chunk := b.Register(t, doc)
	var held []*serve.Sequence
	var requests []*toy.Request
	for i := range sequences {
		s, err := e.Open(kvcache.Pack(chunk), 300+i)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, s)
		requests = append(requests, &toy.Request{Segments: []toy.Placed{{Tokens: doc}}, Offset: 300 + i})
	}
	batches, tokens := make([][]serve.Entry, steps), make([][]int32, steps)
	for i := range batches {
		for j, s := range held[:1+i%sequences] {
			n := 1 + (i+j)%3 + i%20/19*15 // a long one now and then
			batches[i] = append(batches[i], serve.Entry{Sequence: s, Tokens: n})
			tokens[i] = append(tokens[i], toy.Document(uint64(100*i+j), n)...)
		}
	}
	waits := f.names["Synchronize"]
	outs, err := b.Ahead(ctx, batches, tokens)
	if err != nil {
		t.Fatal(err)
	}
	// Of the first steps, some make a buffer larger.
	if n := f.names["Synchronize"] - waits; n > 10 || f.names["WaitEvent"] < steps {
		t.Errorf("%d waits for the stream and %d for an event in %d steps", n, f.names["WaitEvent"], steps)
	}
	for i, batch := range batches {
		row := 0
		for j, entry := range batch {
			requests[j].Own = append(requests[j].Own, tokens[i][row:row+entry.Tokens]...)
			if err := b.Compare(requests[j], entry.Tokens, outs[i], row); err != nil {
				t.Fatalf("step %d, sequence %d: %v", i, j, err)
			}
			row += entry.Tokens
		}
	}
}
