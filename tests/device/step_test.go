package device

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// BenchmarkStep is what a decode step of Llama-3-8B's 32 layers costs the host,
// for sequences of 19 documents of 512 tokens and own tokens behind them: Schedule
// ("schedule-us"), the launches ("launch-us"), and Schedule while the step before
// is at work ("ahead-us"). "device-us" is from the last launch to the end of the
// work, and "step-us" what a step takes of many in a row, each scheduled while the one before is
// at work. What the tensors hold is of no matter here. "graph,lists" is graphs whose lists the device makes.
func BenchmarkStep(b *testing.B) { eachBinding(b, benchmarkSteps) }

// alone is kernels without shared decode.
type alone struct{ *kernel.Set }

func (k alone) Tile(kind abi.Kind) (rows, keys int) {
	if kind == abi.KindSharedDecode {
		return 0, 0
	}
	return k.Set.Tile(kind)
}

func benchmarkSteps(b *testing.B, o opener) {
	d, kernels := openLlama3(b, o)
	b.Run("shared", func(b *testing.B) { benchmarkStep(b, d, kernels) })
	b.Run("alone", func(b *testing.B) { benchmarkStep(b, d, alone{kernels}) })
}

func benchmarkStep(b *testing.B, d cuda.Device, kernels serve.Kernels) {
	const layers, documents, tokens, segments = 32, 50, 512, 20
	ctx := context.Background()
	m := toy.Llama3(layers)
	e, err := serve.New(d, kernels, m, serve.Options{Pages: documents*tokens/m.PageSize + 300})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	io := zeros(b, d, m, tokens)
	attend := func(s *serve.Step) error {
		return attendEach(ctx, s, layers, io)
	}
	var chunks []*kvcache.Chunk
	for i := range documents {
		c, err := e.Register(ctx, toy.Document(uint64(i), tokens), func(_ context.Context, s *serve.Step) error { return attend(s) })
		if err != nil {
			b.Fatal(err)
		}
		chunks = append(chunks, c)
	}
	for _, sequences := range []int{1, 64, 256} {
		var batch []serve.Entry
		for i := range sequences {
			held := make([]*kvcache.Chunk, segments-1)
			for j := range held {
				held[j] = chunks[(7*i+j)%documents]
			}
			s, err := e.Open(kvcache.Pack(held...), kvcache.Packed)
			if err != nil {
				b.Fatal(err)
			}
			batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
		}
		var graphs []*serve.Graph
		for _, lists := range []serve.Lists{serve.ListsByHost, serve.ListsByDevice} {
			graph, err := e.Capture(ctx, serve.GraphSize{Tokens: sequences, Segments: segments * sequences, Lists: lists}, attend)
			if err != nil {
				b.Fatal(err)
			}
			graphs = append(graphs, graph)
		}
		page := m.KVHeads * (m.HeadDim + m.VHeadDim) * 2 * m.PageSize * layers
		stats := e.Cache().Stats()
		b.Logf("%d sequences: %d MiB of KV, %d with a copy each", sequences, stats.PagesUsed*page>>20, stats.PagesUnshared*page>>20)
		b.Run(fmt.Sprintf("%dx%d/layers", sequences, segments), func(b *testing.B) { steps(b, d, e.Schedule, batch, attend) })
		for i, graph := range graphs {
			name := []string{"graph", "graph,lists"}[i]
			b.Run(fmt.Sprintf("%dx%d/%s", sequences, segments, name), func(b *testing.B) {
				steps(b, d, graph.Schedule, batch, func(s *serve.Step) error { return s.Launch(ctx) })
			})
			if err := graph.Close(ctx); err != nil {
				b.Fatal(err)
			}
		}
		for _, entry := range batch {
			if err := entry.Sequence.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

type scheduler func(context.Context, []serve.Entry) (*serve.Step, error)

// steps times the parts of steps: of each but the first, Schedule is timed once with
// the device idle and once with it at work.
func steps(b *testing.B, d cuda.Device, schedule scheduler, batch []serve.Entry, launch func(*serve.Step) error) {
	ctx := context.Background()
	var scheduled, launched, worked, ahead time.Duration
	var stream cuda.Stream
	step := func() (*serve.Step, time.Duration) {
		start := time.Now()
		s, err := schedule(ctx, batch)
		if err != nil {
			b.Fatal(err)
		}
		return s, time.Since(start)
	}
	run := func(s *serve.Step) time.Duration {
		start := time.Now()
		if err := launch(s); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	n := 0
	for b.Loop() {
		s, took := step()
		scheduled += took
		launched += run(s)
		start := time.Now()
		if err := s.Wait(ctx); err != nil {
			b.Fatal(err)
		}
		worked += time.Since(start)
		s.Abort()

		s, _ = step()
		run(s)
		s.Abort() // its work goes on
		s, took = step()
		ahead += took
		if err := s.Wait(ctx); err != nil {
			b.Fatal(err)
		}
		s.Abort()
		n++
	}
	const inARow = 50
	start := time.Now()
	for range inARow {
		s, _ := step()
		run(s)
		stream = s.Stream()
		s.Abort()
	}
	if err := d.Synchronize(ctx, stream); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(start).Nanoseconds())/1000/inARow, "step-us")
	for name, sum := range map[string]time.Duration{"schedule-us": scheduled, "launch-us": launched, "device-us": worked, "ahead-us": ahead} {
		b.ReportMetric(float64(sum.Nanoseconds())/1000/float64(n), name)
	}
	b.ReportMetric(0, "ns/op")
}
