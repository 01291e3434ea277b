package serve_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// idleDevice copies and waits for nothing, so that a step costs what the host does for it.
type idleDevice struct{ *cpu.Device }

func (idleDevice) CopyFromHostAsync(cuda.Stream, abi.DevicePtr, []byte, cuda.Blocks) error {
	return nil
}
func (idleDevice) Record(cuda.Event, cuda.Stream) error               { return nil }
func (idleDevice) WaitEvent(context.Context, cuda.Event) error        { return nil }
func (idleDevice) Synchronize(context.Context, cuda.Stream) error     { return nil }
func (idleDevice) Follow(_, _ cuda.Stream, _ cuda.Event) error        { return nil }
func (idleDevice) Fill(cuda.Stream, abi.DevicePtr, byte, int64) error { return nil }

// idleKernels do nothing. Work is listed for them as for Llama-3-8B's on an H200.
type idleKernels struct{ shared bool }

func (k idleKernels) Tile(kind abi.Kind) (rows, keys int) {
	switch {
	case kind == abi.KindDecode:
		return 16, 64
	case kind == abi.KindSharedDecode && !k.shared:
		return 0, 0
	}
	return 128, 128
}

func (idleKernels) Blocks(abi.Kind) int { return 132 }

func (k idleKernels) Choose(kind abi.Kind, _, _ int) kernel.Choice {
	rows, keys := k.Tile(kind)
	c := kernel.Choice{Kind: kind, Rows: rows, Keys: keys, Blocks: 132, Tokens: 256, Resident: 132, Folds: true}
	if kind == abi.KindDecode {
		c.Blocks, c.Resident = 264, 264
	}
	return c
}

func (k idleKernels) Choices(kind abi.Kind) []kernel.Choice {
	return []kernel.Choice{k.Choose(kind, 0, 0)}
}

func (idleKernels) MapChoice(kernel.Choice, abi.DevicePtr, abi.DevicePtr, int, int) (*kernel.CacheMaps, error) {
	return nil, nil
}

func (idleKernels) Append(cuda.Stream, abi.AppendParams) error                { return nil }
func (idleKernels) Prefill(cuda.Stream, abi.AttendParams) error               { return nil }
func (idleKernels) Extend(cuda.Stream, abi.AttendParams) error                { return nil }
func (idleKernels) Decode(cuda.Stream, abi.AttendParams) error                { return nil }
func (idleKernels) SharedDecode(cuda.Stream, abi.AttendParams) error          { return nil }
func (idleKernels) Attend(cuda.Stream, kernel.Choice, abi.AttendParams) error { return nil }
func (idleKernels) Merge(cuda.Stream, abi.MergeParams) error                  { return nil }

// BenchmarkSchedule is what Schedule costs the host ("schedule-us") in decode steps that
// follow one another: of sequences that hold 19 of 50 documents of 512 tokens each, and up to
// 1024 own tokens, of Llama-3-8B's shape and with work lists as for an H200. "shared" has
// shared decode and "alone" has none; in "joined" one sequence of the batch leaves before each
// step and another joins in its place.
func BenchmarkSchedule(b *testing.B) {
	for _, shared := range []bool{true, false} {
		for _, n := range []int{1, 64, 256} {
			for _, joined := range []bool{false, true} {
				name := "alone"
				if shared {
					name = "shared"
				}
				if joined {
					name += ",joined"
				}
				b.Run(fmt.Sprintf("%s/%dx20", name, n), func(b *testing.B) { benchmarkSchedule(b, n, shared, joined) })
			}
		}
	}
}

func benchmarkSchedule(b *testing.B, sequences int, shared, joined bool) {
	const documents, tokens, held, most = 50, 512, 19, 1024
	m := toy.Small()
	m.Layers, m.PageSize, m.KVHeads, m.Group, m.MaxPosition = 1, 16, 8, 4, 0
	m.Rope.RotaryDim, m.Rope.MaxPosition = 0, 0
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	pages := (documents*tokens + sequences*(most+m.PageSize)) / m.PageSize
	e, err := serve.New(idleDevice{dev}, idleKernels{shared}, m, serve.Options{Pages: pages})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	ctx := b.Context()
	io := serve.IO{Q: 256, K: 256, V: 256, Out: 256}
	attend := func(_ context.Context, s *serve.Step) error { return s.Attend(ctx, 0, io) }
	chunks := make([]*kvcache.Chunk, documents)
	for i := range chunks {
		if chunks[i], err = e.Register(ctx, toy.Document(uint64(i), tokens), attend); err != nil {
			b.Fatal(err)
		}
	}
	// step is a step of the batch; it returns the time of Schedule.
	step := func(batch ...serve.Entry) time.Duration {
		start := time.Now()
		s, err := e.Schedule(ctx, batch)
		took := time.Since(start)
		if err != nil {
			b.Fatal(err)
		}
		if err := attend(ctx, s); err != nil {
			b.Fatal(err)
		}
		if err := s.Commit(); err != nil {
			b.Fatal(err)
		}
		return took
	}
	opened := 0
	open := func() *serve.Sequence {
		of := make([]*kvcache.Chunk, held)
		for j := range of {
			of[j] = chunks[(7*opened+j)%documents]
		}
		s, err := e.Open(kvcache.Pack(of...), kvcache.Packed)
		if err != nil {
			b.Fatal(err)
		}
		opened++
		step(serve.Entry{Sequence: s, Tokens: 1 + 37*opened%400}) // its prompt
		return s
	}
	batch := make([]serve.Entry, sequences)
	for i := range batch {
		batch[i] = serve.Entry{Sequence: open(), Tokens: 1}
	}
	step(batch...)
	b.ReportAllocs()
	var scheduled time.Duration
	steps := 0
	for b.Loop() {
		if joined {
			of := &batch[steps%sequences].Sequence
			if err := (*of).Close(); err != nil {
				b.Fatal(err)
			}
			*of = open()
		}
		for _, entry := range batch {
			if s := entry.Sequence; s.Tokens() == most {
				if err := s.Truncate(most / 2); err != nil {
					b.Fatal(err)
				}
			}
		}
		scheduled += step(batch...)
		steps++
	}
	b.ReportMetric(float64(scheduled.Nanoseconds())/1000/float64(steps), "schedule-us")
	b.ReportMetric(0, "ns/op")
}
