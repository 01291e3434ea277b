package device

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// modes are a model's.
type modes struct{ sharing, batching string }

// engine serves the generated kernels of SmolLM2's shape.
func engine(t testing.TB, d cuda.Device, layers int, m modes, o serve.Options) *toy.Bench {
	t.Helper()
	return engineOf(t, d, smollm2_135m.Bundle(), layers, m, o)
}

func engineOf(t testing.TB, d cuda.Device, bundle kernel.Bundle, layers int, of modes, o serve.Options) *toy.Bench {
	t.Helper()
	ctx := context.Background()
	kernels, err := kernel.Open(ctx, d, bundle, kernel.Options{})
	if errors.Is(err, nvrtc.ErrNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kernels.Close(); err != nil {
			t.Error(err)
		}
	})
	m := serve.ModelOf(bundle, "toy", layers)
	m.Sharing, m.Batching = of.sharing, of.batching
	e, err := serve.New(d, kernels, m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return toy.New(d, e, m)
}

// Random operations on an engine, a graph among them, give what the oracle gives.
func TestServe(t *testing.T) { eachBinding(t, testServe) }

func testServe(t *testing.T, o opener) {
	for _, batching := range []string{"bitwise", "fastest"} {
		t.Run(batching, func(t *testing.T) {
			play(t, engine(t, o.gpu(t), 2, modes{"bitwise", batching}, playerOptions))
		})
	}
}

// The same by kernels ahead of which raw keys are rotated, on the GPUs that have such.
func TestServeKeysAhead(t *testing.T) { eachBinding(t, testServeKeysAhead) }

func testServeKeysAhead(t *testing.T, o opener) {
	d := o.gpu(t)
	if d.Info().Major != 9 {
		t.Skipf("%s has no kernels of family sm90", d.Info().Name)
	}
	play(t, engineOf(t, d, toy.KeysAhead(t, "smollm2_135m", d.Info().Name), 2, modes{sharing: "bitwise"}, playerOptions))
}

// playerOptions are for short documents, of which sharing that is fastest would share none.
var playerOptions = serve.Options{Pages: 60, HostBytes: 1 << 20}

// play plays with a graph whose lists the host makes, and then with one whose lists the device makes.
func play(t *testing.T, b *toy.Bench) {
	t.Helper()
	for _, lists := range []serve.Lists{serve.ListsByHost, serve.ListsByDevice} {
		playWith(t, b, serve.GraphSize{Tokens: toy.GraphTokens, Context: playerOptions.Pages * 16, Lists: lists})
	}
}

func playWith(t *testing.T, b *toy.Bench, size serve.GraphSize) {
	t.Helper()
	ctx := context.Background()
	graph, err := b.Record(ctx, size)
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Free()
	p := toy.NewPlayer(ctx, b, 1, graph, true)
	for i := range 1000 {
		if err := p.Operation(); err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
	if err := p.Finish(); err != nil {
		t.Error(err)
	}
	t.Logf("lists by %q: %v, %+v", size.Lists, p.Counts, b.Engine.Cache().Stats())
}

// Steps that are queued one behind the other, without a wait between them, give
// what the oracle gives.
func TestServeAhead(t *testing.T) { eachBinding(t, testServeAhead) }

func testServeAhead(t *testing.T, o opener) {
	const steps = 100
	b := engine(t, o.gpu(t), 2, modes{}, serve.Options{Pages: 1000})
	doc := toy.Document(1, 1200)
	chunk := b.Register(t, doc)
	var batch []serve.Entry
	var requests []*toy.Request
	for i := range 4 {
		s, err := b.Engine.Open(kvcache.Pack(chunk), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, serve.Entry{Sequence: s, Tokens: 1 + i})
		requests = append(requests, &toy.Request{Segments: []toy.Placed{{Tokens: doc}}, Offset: len(doc)})
	}
	batches, tokens := make([][]serve.Entry, steps), make([][]int32, steps)
	for i := range batches {
		batches[i] = batch[:1+i%4]
		for _, entry := range batches[i] {
			tokens[i] = append(tokens[i], toy.Document(uint64(i), entry.Tokens)...)
		}
	}
	outs, err := b.Ahead(context.Background(), batches, tokens)
	if err != nil {
		t.Fatal(err)
	}
	for i, batch := range batches {
		row := 0
		for j, entry := range batch {
			requests[j].Own = append(requests[j].Own, tokens[i][row:row+entry.Tokens]...)
			if i > steps-8 {
				if err := b.Compare(requests[j], entry.Tokens, outs[i], row); err != nil {
					t.Fatalf("step %d, sequence %d: %v", i, j, err)
				}
			}
			row += entry.Tokens
		}
	}
}

// The device holds the KV of one document once for a thousand sequences, and they
// are served from it.
func TestServeOneCopy(t *testing.T) { eachBinding(t, testServeOneCopy) }

func testServeOneCopy(t *testing.T, o opener) {
	const sequences, layers = 1000, 30
	d := o.gpu(t)
	b := engine(t, d, layers, modes{}, serve.Options{Pages: 1200})
	b.Trusting = true
	ctx := context.Background()
	doc := toy.Document(1, 2000)
	chunk := b.Register(t, doc)
	free := func() int64 {
		n, _, err := d.(cuda.MemoryDevice).Memory()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := free()
	var batch []serve.Entry
	for i := range sequences {
		s, err := b.Engine.Open([]kvcache.Placement{{Chunk: chunk, Offset: 7 * i}}, kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
	}
	once := len(doc) / b.Model.PageSize
	if s := b.Engine.Cache().Stats(); s.PagesUsed != once || s.PagesUnshared != sequences*once || before != free() {
		t.Errorf("%+v, want %d pages used; %d bytes of the device were free, %d are", s, once, before, free())
	}
	tokens := toy.Document(2, sequences)
	outs, err := b.Step(ctx, batch, tokens)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 500, 999} {
		r := &toy.Request{Segments: []toy.Placed{{Tokens: doc, Offset: 7 * i}}, Offset: 7*i + len(doc), Own: tokens[i : i+1]}
		if err := b.Compare(r, 1, outs, i); err != nil {
			t.Errorf("sequence %d: %v", i, err)
		}
	}
	s, page := b.Engine.Cache().Stats(), b.Engine.Cache().Config().Shape.PageBytes()
	t.Logf("%d sequences hold a document of %d tokens: %d MiB of KV, their own tokens' %d among them; %d MiB with a copy each",
		sequences, len(doc), int64(s.PagesUsed)*page>>20, int64(s.PagesUsed-once)*page>>20, int64(s.PagesUnshared)*page>>20)
}

// A sequence has the same bits alone, beside others that hold its documents, and
// after these were evicted and restored.
func TestServeSameBits(t *testing.T) { eachBinding(t, testServeSameBits) }

func testServeSameBits(t *testing.T, o opener) {
	b := engine(t, o.gpu(t), 2, modes{sharing: "bitwise"}, serve.Options{Pages: 4000, HostBytes: 1 << 30})
	b.Trusting = true
	ctx := context.Background()
	docs := [][]int32{toy.Document(1, 1500), toy.Document(2, 41), toy.Document(3, 2900)}
	run := func(others int) [][]byte {
		var held []*kvcache.Chunk
		for _, d := range docs {
			held = append(held, b.Register(t, d))
		}
		var batch []serve.Entry
		for i := range others + 1 {
			order := kvcache.Pack(held[2], held[0], held[1])
			if i > 0 {
				order = kvcache.Pack(held[i%3], held[i/3%3])
			}
			s, err := b.Engine.Open(order, kvcache.Packed)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			batch = append(batch, serve.Entry{Sequence: s})
		}
		for _, c := range held {
			c.Release()
		}
		var all [][]byte
		for _, n := range []int{70, 1, 1} { // the first sequence's rows come first
			var tokens []int32
			for i := range batch {
				batch[i].Tokens = 1 + i%9
				if i == 0 {
					batch[i].Tokens = n
				}
				tokens = append(tokens, toy.Document(uint64(n), batch[i].Tokens)...)
			}
			outs, err := b.Step(ctx, batch, tokens)
			if err != nil {
				t.Fatal(err)
			}
			for _, out := range outs {
				all = append(all, out[:len(out)/len(tokens)*n])
			}
		}
		return all
	}
	alone := run(0)
	beside := run(63)
	for _, d := range docs {
		if err := b.Engine.Cache().Evict(b.Engine.Cache().Key(kvcache.Document{Tokens: d}).ID()); err != nil {
			t.Fatal(err)
		}
	}
	restored := run(0)
	for i := range alone {
		if !bytes.Equal(alone[i], beside[i]) || !bytes.Equal(alone[i], restored[i]) {
			t.Errorf("output %d: other bits beside 63 others or after a restore", i)
		}
	}
	if s := b.Engine.Cache().Stats(); s.Restores != int64(len(docs)) {
		t.Errorf("%d restores of %d", s.Restores, len(docs))
	}
}
