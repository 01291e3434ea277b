package device

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// BenchmarkExtend is a layer of Llama-3-8B in a step of questions of many lengths, each over
// 8192 tokens of documents of its own, and of such as are answered already, a token each: append,
// extend, decode and merge ("attend-us"), with either batching.
func BenchmarkExtend(b *testing.B) { eachBinding(b, benchmarkExtends) }

func benchmarkExtends(b *testing.B, o opener) {
	ctx := context.Background()
	d := o.gpu(b)
	kernels, err := kernel.Open(ctx, d, llama3.Bundle(), kernel.Options{})
	if errors.Is(err, nvrtc.ErrNotFound) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer kernels.Close()
	for _, batching := range []string{"bitwise", "fastest"} {
		for _, c := range []struct{ questions, from, to, answers int }{
			{4, 16, 200, 0}, {8, 64, 64, 0}, {16, 16, 32, 0}, {16, 33, 64, 0}, {16, 16, 96, 0}, {16, 16, 200, 0}, {16, 64, 400, 0},
			{1, 64, 64, 32}, {4, 16, 200, 32}, {2, 512, 512, 32},
		} {
			b.Run(fmt.Sprintf("%s/%dx%d-%d+%d", batching, c.questions, c.from, c.to, c.answers), func(b *testing.B) {
				benchmarkExtend(b, d, kernels, batching, c.questions, c.from, c.to, c.answers)
			})
		}
	}
}

func benchmarkExtend(b *testing.B, d cuda.Device, kernels *kernel.Set, batching string, questions, from, to, answers int) {
	const tokens, documents, seed = 512, 16, 1
	ctx := context.Background()
	m := toy.Llama3(1)
	m.Batching = batching
	e, err := serve.New(d, kernels, m, serve.Options{Pages: (questions + answers) * (documents*tokens + to + m.PageSize) / m.PageSize})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	most := max(tokens, questions*to+answers)
	row := int64(m.KVHeads*m.HeadDim) * 2
	memory := alloc(b, d, int64(most)*row*int64(2*m.Group+2))
	if err := d.Fill(0, memory, 0, int64(most)*row*int64(2*m.Group+2)); err != nil {
		b.Fatal(err)
	}
	query := abi.DevicePtr(int64(most) * row * int64(m.Group))
	io := serve.IO{Q: memory, Out: memory + query, K: memory + 2*query, V: memory + 2*query + abi.DevicePtr(int64(most)*row)}
	rng := rand.New(rand.NewPCG(seed, 0))
	var batch []serve.Entry
	for i := range questions + answers {
		held := make([]*kvcache.Chunk, documents)
		for j := range held {
			if held[j], err = e.Register(ctx, toy.Document(uint64(documents*i+j), tokens), func(_ context.Context, s *serve.Step) error { return s.Attend(0, io) }); err != nil {
				b.Fatal(err)
			}
		}
		s, err := e.Open(kvcache.Pack(held...), kvcache.Packed)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
		if i < questions {
			batch[i].Tokens = from + rng.IntN(to-from+1)
		}
	}
	s, err := e.Schedule(ctx, batch)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Abort()
	attend := func(n int) time.Duration {
		start := time.Now()
		for range n {
			if err := s.Attend(0, io); err != nil {
				b.Fatal(err)
			}
		}
		if err := d.Synchronize(ctx, s.Stream()); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	attend(5)
	b.ResetTimer()
	took := attend(b.N)
	b.ReportMetric(float64(took.Nanoseconds())/1e3/float64(b.N), "attend-us")
	b.ReportMetric(0, "ns/op")
}
