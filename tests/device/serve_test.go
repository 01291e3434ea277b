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

// engine serves the generated kernels of SmolLM2's shape.
func engine(t testing.TB, d cuda.Device, layers int, o serve.Options) *toy.Bench {
	t.Helper()
	ctx := context.Background()
	kernels, err := kernel.Open(ctx, d, smollm2_135m.Bundle(), kernel.Options{})
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
	m := toy.SmolLM2(layers)
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
	b := engine(t, o.gpu(t), 2, serve.Options{Pages: 60, HostBytes: 1 << 20})
	ctx := context.Background()
	graph, err := b.Record(ctx, serve.GraphSize{Tokens: toy.GraphTokens})
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Free()
	p := toy.NewPlayer(ctx, b, 1, graph, true)
	for i := range 2000 {
		if err := p.Operation(); err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
	if err := p.Finish(); err != nil {
		t.Error(err)
	}
	t.Logf("%v, %+v", p.Counts, b.Engine.Cache().Stats())
}

// A sequence has the same bits alone, beside others, and after its documents
// were evicted and restored.
func TestServeSameBits(t *testing.T) { eachBinding(t, testServeSameBits) }

func testServeSameBits(t *testing.T, o opener) {
	b := engine(t, o.gpu(t), 2, serve.Options{Pages: 4000, HostBytes: 1 << 30})
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

// BenchmarkServe is what a decode step of 30 layers costs the host: Schedule and
// the launches, by layer and as a graph, without waiting for the device.
func BenchmarkServe(b *testing.B) {
	eachBinding(b, func(b *testing.B, o opener) {
		const layers, sequences = 30, 64
		ctx := context.Background()
		bench := engine(b, o.gpu(b), layers, serve.Options{Pages: 2000})
		bench.Trusting = true
		chunk := bench.Register(b, toy.Document(1, 2000))
		var batch []serve.Entry
		for range sequences {
			s, err := bench.Engine.Open(kvcache.Pack(chunk), kvcache.Packed)
			if err != nil {
				b.Fatal(err)
			}
			batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
		}
		graph, err := bench.Record(ctx, serve.GraphSize{Tokens: sequences})
		if err != nil {
			b.Fatal(err)
		}
		defer graph.Free()
		run := func(name string, schedule func(context.Context, []serve.Entry) (*serve.Step, error), launch func(*serve.Step) error) {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					s, err := schedule(ctx, batch)
					if err != nil {
						b.Fatal(err)
					}
					if launch != nil {
						if err := launch(s); err != nil {
							b.Fatal(err)
						}
					}
					b.StopTimer()
					if err := s.Wait(ctx); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					s.Abort()
				}
			})
		}
		run("schedule", bench.Engine.Schedule, nil)
		run("by layer", bench.Engine.Schedule, func(s *serve.Step) error {
			for layer := range layers {
				if err := s.Attend(layer, graph.IO(layer)); err != nil {
					return err
				}
			}
			return nil
		})
		run("graph", graph.Schedule, (*serve.Step).Launch)
	})
}
