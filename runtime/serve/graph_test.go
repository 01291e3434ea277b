package serve_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// A graph that is recorded once gives, batch after batch and however long the
// sequences get, the bits of steps that are launched layer by layer, whoever makes its lists.
func TestGraph(t *testing.T) {
	for _, lists := range []serve.Lists{serve.ListsByHost, serve.ListsByDevice} {
		t.Run("lists="+string(lists), func(t *testing.T) { testGraph(t, lists) })
	}
}

func testGraph(t *testing.T, lists serve.Lists) {
	ctx := t.Context()
	b := newBench(t, toy.Small(), serve.Options{Pages: 3000})
	g, err := b.Record(ctx, serve.GraphSize{Tokens: 6, Lists: lists})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Free()
	doc := toy.Document(1, 240) // near the length from which decode is split
	chunk := b.Register(t, doc)
	var graphed, launched []*serve.Sequence
	var requests []*toy.Request
	for i := range 4 {
		for _, list := range []*[]*serve.Sequence{&graphed, &launched} {
			s, err := b.Engine.Open(kvcache.Pack(chunk), 1000*i)
			if err != nil {
				t.Fatal(err)
			}
			*list = append(*list, s)
		}
		requests = append(requests, &toy.Request{Segments: []toy.Placed{{Tokens: doc, Offset: 0}}, Offset: 1000 * i})
	}
	for step := range 40 {
		var a, c []serve.Entry
		var tokens []int32
		for i := range 1 + step%4 { // batches of any size up to the graph's
			n := 1 + (step+i)%2*(step%2)
			if len(tokens)+n > 6 {
				n = 1
			}
			a = append(a, serve.Entry{Sequence: graphed[i], Tokens: n})
			c = append(c, serve.Entry{Sequence: launched[i], Tokens: n})
			more := toy.Document(uint64(10*step+i), n)
			tokens = append(tokens, more...)
			requests[i].Own = append(requests[i].Own, more...)
		}
		if step%3 == 0 { // made ahead, as if all of the step before went on, and taken back as some have ended
			var all []serve.Entry
			for _, s := range graphed {
				all = append(all, serve.Entry{Sequence: s, Tokens: 1})
			}
			ahead, err := g.Schedule(ctx, all)
			if err != nil {
				t.Fatal(err)
			}
			ahead.Abort()
		}
		got, err := g.Step(ctx, a, tokens)
		if err != nil {
			t.Fatal(err)
		}
		want, err := b.Step(ctx, c, tokens)
		if err != nil {
			t.Fatal(err)
		}
		row := 0
		for i := range a {
			if err := b.Compare(requests[i], a[i].Tokens, got, row); err != nil {
				t.Fatalf("step %d, sequence %d: %v", step, i, err)
			}
			row += a[i].Tokens
		}
		for layer := range got {
			if !bytes.Equal(got[layer], want[layer]) {
				t.Fatalf("step %d, layer %d: the graph gives other bits", step, layer)
			}
		}
	}
	if err := g.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := g.Schedule(ctx, nil); !errors.Is(err, serve.ErrClosed) {
		t.Errorf("schedule for a closed graph: %v", err)
	}
}

func TestGraphErrors(t *testing.T) {
	ctx := t.Context()
	b := newBench(t, toy.Small(), serve.Options{Pages: 500})
	chunk := b.Register(t, toy.Document(1, 300))
	open := func(chunks ...*kvcache.Chunk) *serve.Sequence {
		s, err := b.Engine.Open(kvcache.Pack(chunks...), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, two, many := open(chunk), open(chunk), open(slices.Repeat([]*kvcache.Chunk{b.Register(t, toy.Document(2, 9))}, 8)...)
	for _, c := range []struct {
		name  string
		size  serve.GraphSize
		batch []serve.Entry
		want  error
		text  string
	}{
		{"tokens", serve.GraphSize{Tokens: 1}, []serve.Entry{{Sequence: one, Tokens: 1}, {Sequence: two, Tokens: 1}}, serve.ErrFixedSize, "2 query tokens, there is room for 1"},
		{"context", serve.GraphSize{Tokens: 1, Context: 200}, []serve.Entry{{Sequence: one, Tokens: 1}}, serve.ErrFixedSize, "work items, there is room for"},
		{"pages", serve.GraphSize{Tokens: 1, Pages: 74}, []serve.Entry{{Sequence: one, Tokens: 1}}, serve.ErrFixedSize, "raise GraphSize.Pages"},
		{"segments", serve.GraphSize{Tokens: 2, Context: 310, Segments: 1}, []serve.Entry{{Sequence: many, Tokens: 1}}, serve.ErrFixedSize, "raise GraphSize.Segments"},
		{"no decode", serve.GraphSize{Tokens: 100}, []serve.Entry{{Sequence: one, Tokens: 50}}, serve.ErrFixedSize, "a graph takes at most"},
		{"no sequence", serve.GraphSize{Tokens: 1}, []serve.Entry{{Tokens: 1}}, nil, "not a sequence of this engine"},
		{"fits", serve.GraphSize{Tokens: 2, Context: 310, Segments: 4, Pages: 77}, []serve.Entry{{Sequence: one, Tokens: 1}, {Sequence: two, Tokens: 1}}, nil, ""},
	} {
		g, err := b.Record(ctx, c.size)
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.Schedule(ctx, c.batch)
		switch {
		case c.name == "fits" && err == nil:
			if err := s.Attend(ctx, 0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}); err == nil {
				t.Error("a layer of a graph's step was attended")
			}
			if _, err := g.Schedule(ctx, c.batch); !errors.Is(err, serve.ErrBusy) {
				t.Errorf("a graph in two steps: %v", err)
			}
			if err := g.Close(ctx); !errors.Is(err, serve.ErrBusy) {
				t.Errorf("closed in a step: %v", err)
			}
			if err := s.Commit(); !errors.Is(err, serve.ErrIncomplete) {
				t.Errorf("commit without launch: %v", err)
			}
		case err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text):
			t.Errorf("%s: error %v, want %v", c.name, err, c.want)
		}
		if one.Tokens() != 0 || two.Tokens() != 0 {
			t.Errorf("%s: %d and %d tokens are left", c.name, one.Tokens(), two.Tokens())
		}
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		g.Free()
	}

	for _, size := range []serve.GraphSize{
		{}, {Tokens: -1}, {Tokens: 1, Pages: -1}, {Tokens: 1, Pages: 1 << 61}, {Tokens: 1, Pages: math.MaxInt32}, {Tokens: 1 << 30}, {Tokens: 1 << 25, Segments: 1},
	} {
		if g, err := b.Engine.Capture(ctx, size, nil); err == nil {
			t.Errorf("captured %v of %+v", g, size)
		}
	}
	nothing := func(*serve.Step) error { return nil }
	if _, err := b.Engine.Capture(ctx, serve.GraphSize{Tokens: 1}, nothing); !errors.Is(err, serve.ErrIncomplete) {
		t.Errorf("capture of nothing: %v", err)
	}
	failed := fmt.Errorf("failed")
	if _, err := b.Engine.Capture(ctx, serve.GraphSize{Tokens: 1}, func(*serve.Step) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.Engine.Capture(cancelled, serve.GraphSize{Tokens: 1}, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// What a step of a capture can't do is an error, and nothing hangs.
func TestCaptureOnlyAttends(t *testing.T) {
	b := newBench(t, toy.Tiny(), serve.Options{Pages: 10})
	for name, f := range map[string]func(s *serve.Step) error{
		"launch": func(s *serve.Step) error { return s.Launch(t.Context()) },
		"commit": (*serve.Step).Commit,
		"wait":   func(s *serve.Step) error { return s.Wait(t.Context()) },
	} {
		var kept *serve.Step
		_, err := b.Engine.Capture(t.Context(), serve.GraphSize{Tokens: 1}, func(s *serve.Step) error {
			kept = s
			return f(s)
		})
		if want := name + ": the step of a capture can only be attended"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
		if err := kept.Attend(t.Context(), 0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}); !errors.Is(err, serve.ErrEnded) {
			t.Errorf("attend when the capture has failed: %v", err)
		}
	}
}

// counted counts what is allocated and what streams there are.
type counted struct {
	*cpu.Device
	memory, streams int
}

func (c *counted) Alloc(n int64) (abi.DevicePtr, error) {
	c.memory++
	return c.Device.Alloc(n)
}

func (c *counted) Free(p abi.DevicePtr) error {
	c.memory--
	return c.Device.Free(p)
}

func (c *counted) NewStream() (cuda.Stream, error) {
	c.streams++
	return c.Device.NewStream()
}

func (c *counted) DestroyStream(s cuda.Stream) error {
	c.streams--
	return c.Device.DestroyStream(s)
}

// A record that panics leaves nothing behind, and the engine goes on.
func TestCapturePanic(t *testing.T) {
	dev := &counted{Device: cpu.Open(cpu.Options{Workers: 1})}
	defer dev.Close()
	e, err := serve.New(dev, cpuKernels(t, dev.Device, toy.Small()), toy.Small(), serve.Options{Pages: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var kept *serve.Step
	capture := func() (panicked any) {
		defer func() { panicked = recover() }()
		_, err := e.Capture(t.Context(), serve.GraphSize{Tokens: 1}, func(s *serve.Step) error { kept = s; panic("broken") })
		t.Errorf("capture returned %v", err)
		return nil
	}
	memory, streams := dev.memory, dev.streams
	for range 2 {
		if panicked := capture(); panicked != "broken" {
			t.Errorf("panic %v", panicked)
		}
		if err := kept.Attend(t.Context(), 0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}); !errors.Is(err, serve.ErrEnded) {
			t.Errorf("attend behind the panic: %v", err)
		}
	}
	if dev.memory != memory || dev.streams != streams {
		t.Errorf("%d allocations and %d streams are left behind", dev.memory-memory, dev.streams-streams)
	}
}

// noGraphs hides what a device has beside cuda.Device.
type noGraphs struct{ cuda.Device }

func TestNoGraphs(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	e, err := serve.New(noGraphs{dev}, cpuKernels(t, dev, toy.Small()), toy.Small(), serve.Options{Pages: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Capture(t.Context(), serve.GraphSize{Tokens: 1}, nil); !errors.Is(err, serve.ErrNoGraphs) {
		t.Errorf("error %v", err)
	}
}
