package device

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// The sequences of the benchmarks of a layer hold so many documents of their own, of so many tokens.
const layerDocuments, layerTokens = 16, 512

// BenchmarkExtend is a layer of Llama-3-8B in a step of questions of many lengths, each over
// 8192 tokens of documents of its own, and of such as are answered already, a token each: append,
// extend, decode and merge ("layer-us"), with either batching.
func BenchmarkExtend(b *testing.B) { eachBinding(b, benchmarkExtends) }

func benchmarkExtends(b *testing.B, o opener) {
	d, kernels := openLlama3(b, o)
	for _, batching := range []string{"bitwise", "fastest"} {
		for _, c := range []struct{ questions, from, to, answers int }{
			{1, 64, 64, 0}, {4, 16, 200, 0}, {8, 64, 64, 0}, {16, 16, 32, 0}, {16, 33, 64, 0}, {16, 16, 96, 0}, {16, 16, 200, 0}, {16, 64, 400, 0},
			{1, 64, 64, 32}, {4, 16, 200, 32}, {2, 512, 512, 32},
		} {
			b.Run(fmt.Sprintf("%s/%dx%d-%d+%d", batching, c.questions, c.from, c.to, c.answers), func(b *testing.B) {
				benchmarkExtend(b, d, kernels, batching, c.questions, c.from, c.to, c.answers)
			})
		}
	}
}

func benchmarkExtend(b *testing.B, d cuda.Device, kernels *kernel.Set, batching string, questions, from, to, answers int) {
	const layers, seed = 1, 1
	m := toy.Llama3(layers)
	m.Batching = batching
	rng := rand.New(rand.NewPCG(seed, 0))
	tokens := slices.Repeat([]int{1}, questions+answers)
	for i := range questions {
		tokens[i] = from + rng.IntN(to-from+1)
	}
	e, io, batch := openLayer(b, d, kernels, m, tokens)
	s, err := e.Schedule(context.Background(), batch)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Abort()
	benchmarkLayers(b, d, s, layers, func() error { return s.Attend(b.Context(), 0, io) })
}

// BenchmarkDecode is a layer of Llama-3-8B in a decode step that is a graph, of sequences that
// each hold 8192 tokens of documents of its own: append, decode and merge ("layer-us").
func BenchmarkDecode(b *testing.B) { eachBinding(b, benchmarkDecodes) }

func benchmarkDecodes(b *testing.B, o opener) {
	d, kernels := openLlama3(b, o)
	for name, k := range map[string]serve.Kernels{"shared": kernels, "alone": alone{kernels}} {
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) { benchmarkDecode(b, d, k, n) })
		}
	}
}

func benchmarkDecode(b *testing.B, d cuda.Device, kernels serve.Kernels, sequences int) {
	const layers = 8 // more KV than the L2 cache has room for
	ctx := context.Background()
	tokens := slices.Repeat([]int{1}, sequences)
	e, io, batch := openLayer(b, d, kernels, toy.Llama3(layers), tokens)
	graph, err := e.Capture(ctx, serve.GraphSize{Tokens: sequences, Segments: (layerDocuments + 1) * sequences}, func(s *serve.Step) error {
		return attendEach(ctx, s, layers, io)
	})
	if err != nil {
		b.Fatal(err)
	}
	s, err := graph.Schedule(ctx, batch)
	if err != nil {
		b.Fatal(err)
	}
	benchmarkLayers(b, d, s, layers, func() error { return s.Launch(ctx) })
	s.Abort()
	if err := graph.Close(ctx); err != nil {
		b.Fatal(err)
	}
}

func openLlama3(b *testing.B, o opener) (cuda.Device, *kernel.Set) {
	d := o.gpu(b)
	kernels, err := kernel.Open(context.Background(), d, llama3.Bundle(), kernel.Options{})
	if errors.Is(err, nvrtc.ErrNotFound) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = kernels.Close() })
	return d, kernels
}

// openLayer opens an engine with sequences that have so many new tokens.
func openLayer(b *testing.B, d cuda.Device, kernels serve.Kernels, m serve.Model, tokens []int) (*serve.Engine, serve.IO, []serve.Entry) {
	ctx := context.Background()
	pages, rows := 0, 0
	for _, n := range tokens {
		pages += (layerDocuments*layerTokens + n + m.PageSize) / m.PageSize
		rows += n
	}
	e, err := serve.New(d, kernels, m, serve.Options{Pages: pages})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	io := zeros(b, d, m, max(layerTokens, rows))
	encode := func(ctx context.Context, s *serve.Step) error {
		return attendEach(ctx, s, m.Layers, io)
	}
	batch := make([]serve.Entry, len(tokens))
	for i, n := range tokens {
		held := make([]*kvcache.Chunk, layerDocuments)
		for j := range held {
			if held[j], err = e.Register(ctx, toy.Document(uint64(layerDocuments*i+j), layerTokens), encode); err != nil {
				b.Fatal(err)
			}
		}
		s, err := e.Open(kvcache.Pack(held...), kvcache.Packed)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		batch[i] = serve.Entry{Sequence: s, Tokens: n}
	}
	return e, io, batch
}

// attendEach queues so many layers, all by the same tensors.
func attendEach(ctx context.Context, s *serve.Step, layers int, io serve.IO) error {
	for layer := range layers {
		if err := s.Attend(ctx, layer, io); err != nil {
			return err
		}
	}
	return nil
}

// zeros is tensors of so many tokens: what they hold is of no matter to the benchmarks.
func zeros(b *testing.B, d cuda.Device, m serve.Model, tokens int) (io serve.IO) {
	row := m.KVHeads * (m.Group*(m.HeadDim+m.VHeadDim) + m.HeadDim + m.VHeadDim) * 2
	next := alloc(b, d, int64(tokens)*int64(row))
	if err := d.Fill(0, next, 0, int64(tokens)*int64(row)); err != nil {
		b.Fatal(err)
	}
	for _, t := range []struct {
		ptr          *abi.DevicePtr
		heads, width int
	}{{&io.Q, m.KVHeads * m.Group, m.HeadDim}, {&io.Out, m.KVHeads * m.Group, m.VHeadDim}, {&io.K, m.KVHeads, m.HeadDim}, {&io.V, m.KVHeads, m.VHeadDim}} {
		*t.ptr = next
		next += abi.DevicePtr(2 * tokens * t.heads * t.width)
	}
	return io
}

// benchmarkLayers times layers of a step, of which launch queues so many.
func benchmarkLayers(b *testing.B, d cuda.Device, s *serve.Step, layers int, launch func() error) {
	run := func(n int) time.Duration {
		start := time.Now()
		for range n {
			if err := launch(); err != nil {
				b.Fatal(err)
			}
		}
		if err := d.Synchronize(context.Background(), s.Stream()); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	run(5)
	b.ResetTimer()
	took := run(b.N)
	b.ReportMetric(float64(took.Nanoseconds())/1e3/float64(b.N*layers), "layer-us")
	b.ReportMetric(0, "ns/op")
}
