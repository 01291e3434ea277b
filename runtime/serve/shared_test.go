package serve_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// Sequences that hold the same documents at different offsets, one of them twice,
// give what the oracle gives, step after step as others come and go, launched and by
// one graph; with as many query tokens as decode takes, too.
func TestSharedDecode(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*serve.Model)
	}{
		{"fastest", func(*serve.Model) {}},
		{"bitwise", func(m *serve.Model) { m.Sharing = "bitwise" }},
		{"raw", func(m *serve.Model) { m.Encoding = "raw" }},
		{"window", func(m *serve.Model) { m.Window, m.SinkTokens = 980, 3 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := toy.Small()
			m.Layers = 1
			c.change(&m)
			b := newBench(t, m, serve.Options{Pages: 2000})
			b.Trusting = true
			docs := [][]int32{toy.Document(1, 600), toy.Document(2, 410)}
			graph, err := b.Record(t.Context(), serve.GraphSize{Tokens: 16, Segments: 16 * 4, Context: 2000})
			if err != nil {
				t.Fatal(err)
			}
			defer graph.Free()
			long, short := b.Register(t, docs[0]), b.Register(t, docs[1])
			var batch []serve.Entry
			var requests []*toy.Request
			open := func(i int) {
				placements := []kvcache.Placement{{Chunk: long, Offset: 11 * i}, {Chunk: short, Offset: kvcache.Packed}}
				r := &toy.Request{Segments: []toy.Placed{{Tokens: docs[0], Offset: 11 * i}, {Tokens: docs[1], Offset: 11*i + 600}}, Offset: 11*i + 1010}
				if i%4 == 3 { // the second document twice
					placements = append(placements, kvcache.Placement{Chunk: short, Offset: kvcache.Packed})
					r.Segments = append(r.Segments, toy.Placed{Tokens: docs[1], Offset: 11*i + 1010})
					r.Offset += 410
				}
				s, err := b.Engine.Open(placements, kvcache.Packed)
				if err != nil {
					t.Fatal(err)
				}
				batch, requests = append(batch, serve.Entry{Sequence: s}), append(requests, r)
			}
			for i := range 8 {
				open(i)
			}
			for step := range 10 {
				switch step {
				case 4: // one goes, one comes
					if err := batch[0].Sequence.Close(); err != nil {
						t.Fatal(err)
					}
					batch, requests = batch[1:], requests[1:]
					open(9)
				case 7: // all but one go: nothing is shared
					for _, entry := range batch[1:] {
						if err := entry.Sequence.Close(); err != nil {
							t.Fatal(err)
						}
					}
					batch, requests = batch[:1], requests[:1]
				}
				var tokens []int32
				for i := range batch {
					batch[i].Tokens = 1 + (i+step)%2
					more := toy.Document(uint64(10*step+i), batch[i].Tokens)
					tokens = append(tokens, more...)
					requests[i].Own = append(requests[i].Own, more...)
				}
				run := b.Step
				if step%2 > 0 {
					run = graph.Step
				}
				before := sparedBytes(t, b.Engine)
				outs, err := run(t.Context(), batch, tokens)
				if err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if spared := sparedBytes(t, b.Engine) - before; spared > 0 != (len(batch) > 1) {
					t.Errorf("step %d spares %g bytes with a batch of %d", step, spared, len(batch))
				}
				row := 0
				for i, entry := range batch {
					if err := b.Compare(requests[i], entry.Tokens, outs, row); err != nil {
						t.Fatalf("step %d, sequence %d: %v", step, i, err)
					}
					row += entry.Tokens
				}
			}
			if err := graph.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// counting counts the launches of shared decode.
type counting struct {
	manyBlocks
	shared *int
}

func (c counting) SharedDecode(s cuda.Stream, p abi.AttendParams) error {
	*c.shared++
	return c.manyBlocks.SharedDecode(s, p)
}

// A graph of one query token has no shared decode, unless results must have the same bits in any
// batch.
func TestGraphOfOneToken(t *testing.T) {
	for _, c := range []struct {
		sharing string
		tokens  int
		shared  int
	}{{"fastest", 1, 0}, {"fastest", 2, 1}, {"bitwise", 1, 1}} {
		m := toy.Small()
		m.Layers, m.Sharing = 1, c.sharing
		dev, launches := cpu.Open(cpu.Options{Workers: 2}), 0
		b := benchOf(t, dev, counting{cpuKernels(t, dev, m).(manyBlocks), &launches}, m, serve.Options{Pages: 400})
		document := toy.Document(1, 600)
		graph, err := b.Record(t.Context(), serve.GraphSize{Tokens: c.tokens})
		if err != nil {
			t.Fatal(err)
		}
		if launches != c.shared {
			t.Errorf("a graph of %d tokens, sharing %s: %d launches of shared decode, want %d", c.tokens, c.sharing, launches, c.shared)
		}
		s, err := b.Engine.Open(kvcache.Pack(b.Register(t, document)), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		question := toy.Document(2, 1)
		outs, err := graph.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: 1}}, question)
		if err != nil {
			t.Fatal(err)
		}
		r := &toy.Request{Segments: []toy.Placed{{Tokens: document}}, Offset: 600, Own: question}
		if err := b.Compare(r, 1, outs, 0); err != nil {
			t.Errorf("sharing %s: %v", c.sharing, err)
		}
		graph.Free()
		if err := errors.Join(graph.Close(t.Context()), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// sparedBytes is what shared decode has spared.
func sparedBytes(t *testing.T, e *serve.Engine) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(e.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kgen_shared_decode_spared_bytes_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no such metric")
	return 0
}

// What one read spares: two documents of 512 tokens, each for 7 sequences of 8.
func TestSparedBytes(t *testing.T) {
	m := toy.Small()
	b := newBench(t, m, serve.Options{Pages: 1000})
	b.Trusting = true
	first, second := b.Register(t, toy.Document(1, 512)), b.Register(t, toy.Document(2, 512))
	var batch []serve.Entry
	for i := range 8 {
		s, err := b.Engine.Open(kvcache.Pack(first, second), 1024+i)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
	}
	bytes := 2 * 512 * 7 * m.Layers * m.KVHeads * (m.HeadDim + m.VHeadDim) * 2
	for step := range 2 {
		s, err := b.Engine.Schedule(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		if s.Spared() != int64(bytes) {
			t.Errorf("a step spares %d bytes, want %d", s.Spared(), bytes)
		}
		if step == 0 {
			s.Abort() // which counts nothing
			continue
		}
		if _, err := b.Forward(t.Context(), s, toy.Document(3, 8)); err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if got := sparedBytes(t, b.Engine); got != float64(bytes) {
		t.Errorf("%g bytes are spared, want %d", got, bytes)
	}
}

// With bitwise, a graph has room for what its size says, and more is an error.
func TestSharedFixedSize(t *testing.T) {
	m := toy.Small()
	m.Sharing = "bitwise"
	b := newBench(t, m, serve.Options{Pages: 500})
	b.Trusting = true
	chunk := b.Register(t, toy.Document(1, 100))
	for _, c := range []struct {
		segments int
		want     error
	}{{4, nil}, {1, serve.ErrFixedSize}} {
		graph, err := b.Record(t.Context(), serve.GraphSize{Tokens: 1, Segments: c.segments, Context: 300})
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.Engine.Open(kvcache.Pack(chunk, chunk, chunk), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		_, err = graph.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: 1}}, []int32{1})
		if !errors.Is(err, c.want) {
			t.Errorf("%d segments: error %v, want %v", c.segments, err, c.want)
		}
		if err := errors.Join(s.Close(), graph.Close(t.Context())); err != nil {
			t.Error(err)
		}
		graph.Free()
	}
}

// Decode's partial results fill the memory for them to its end, and extend, in the
// same step, has none.
func TestPartialResultsFillTheirMemory(t *testing.T) {
	m := toy.Tiny()
	m.Sharing = "bitwise"
	b := newBench(t, m, serve.Options{Pages: 300})
	chunk := b.Register(t, toy.Document(1, 20))
	defer chunk.Release()
	for _, decodes := range []int{4, 5} { // memory is made a quarter larger than is needed
		var batch []serve.Entry
		for i := range decodes + 1 {
			placed, tokens := []kvcache.Placement{{Chunk: chunk}}, 1
			if i == decodes {
				placed, tokens = nil, 60
			}
			s, err := b.Engine.Open(placed, kvcache.Packed)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			batch = append(batch, serve.Entry{Sequence: s, Tokens: tokens})
		}
		own := toy.Document(2, decodes+60)
		outs, err := b.Step(t.Context(), batch, own)
		if err != nil {
			t.Fatalf("%d decodes: %v", decodes, err)
		}
		if err := b.Compare(&toy.Request{Own: own[decodes:]}, 60, outs, decodes); err != nil {
			t.Errorf("%d decodes: %v", decodes, err)
		}
	}
}
