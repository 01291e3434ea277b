package serve_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// plain hides the method Schedule.
type plain struct{ serve.Kernels }

// withoutSchedule has the method and not the kernel.
type withoutSchedule struct{ manyBlocks }

func (withoutSchedule) Artifact(kind abi.Kind) (kernel.Artifact, bool) {
	return kernel.Artifact{}, kind != abi.KindSchedule
}

func TestDeviceListsAreRefused(t *testing.T) {
	nothing := func(*serve.Step) error { return nil }
	for _, c := range []struct {
		name    string
		lists   serve.Lists
		change  func(*serve.Model)
		kernels func(serve.Kernels) serve.Kernels
		want    string
	}{
		{"unknown", "gpu", nil, nil, `GraphSize.Lists is "gpu": want "", which is what nothing means, or "device"`},
		{"a window", serve.ListsByDevice, func(m *serve.Model) { m.Window = 100 }, nil, "with a window of 100 the host lists"},
		{"no method", serve.ListsByDevice, nil, func(k serve.Kernels) serve.Kernels { return plain{k} }, "the kernels have no method Schedule"},
		{"no kernel", serve.ListsByDevice, nil, func(k serve.Kernels) serve.Kernels { return withoutSchedule{k.(manyBlocks)} }, "the kernels have no schedule: add it to the kernels of the spec"},
		{"bitwise without a context", serve.ListsByDevice, func(m *serve.Model) { m.Sharing = "bitwise" }, nil, "with sharing bitwise the graph's size needs a Context"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := toy.Small()
			if c.change != nil {
				c.change(&m)
			}
			dev := cpu.Open(cpu.Options{Workers: 1})
			var k serve.Kernels = cpuKernels(t, dev, m)
			if c.kernels != nil {
				k = c.kernels(k)
			}
			b := benchOf(t, dev, k, m, serve.Options{Pages: 100})
			_, err := b.Engine.Capture(t.Context(), serve.GraphSize{Tokens: 4, Lists: c.lists}, nothing)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// A step that may take more than a graph has room for is refused, and nothing of it is left.
func TestDeviceListsHaveRoom(t *testing.T) {
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
	one, two := open(chunk), open(slices.Repeat([]*kvcache.Chunk{b.Register(t, toy.Document(2, 9))}, 8)...)
	for _, c := range []struct {
		name  string
		size  serve.GraphSize
		batch []serve.Entry
		want  string
	}{
		{"tokens", serve.GraphSize{Tokens: 1}, []serve.Entry{{Sequence: one, Tokens: 1}, {Sequence: two, Tokens: 1}}, "raise GraphSize.Tokens"},
		{"context", serve.GraphSize{Tokens: 4, Context: 200}, []serve.Entry{{Sequence: one, Tokens: 1}}, "301 tokens of a sequence, there is room for 200: raise GraphSize.Context"},
		{"segments", serve.GraphSize{Tokens: 2, Context: 310, Segments: 4}, []serve.Entry{{Sequence: two, Tokens: 1}}, "9 segments, once for each query token, there is room for 4: raise GraphSize.Segments"},
		{"pages", serve.GraphSize{Tokens: 1, Pages: 74}, []serve.Entry{{Sequence: one, Tokens: 1}}, "raise GraphSize.Pages"},
		{"fits", serve.GraphSize{Tokens: 2, Context: 310, Segments: 11, Pages: 90}, []serve.Entry{{Sequence: one, Tokens: 1}, {Sequence: two, Tokens: 1}}, ""},
	} {
		c.size.Lists = serve.ListsByDevice
		g, err := b.Record(ctx, c.size)
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.Schedule(ctx, c.batch)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, serve.ErrFixedSize) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
		if err == nil {
			s.Abort()
		}
		if one.Tokens() != 0 || two.Tokens() != 0 {
			t.Errorf("%s: %d and %d tokens are left", c.name, one.Tokens(), two.Tokens())
		}
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		g.Free()
	}
}

// What the device spares is counted as what the host says is spared.
func TestDeviceListsCountWhatIsSpared(t *testing.T) {
	const steps = 40 // more than are between two questions to the device
	ctx := t.Context()
	m := toy.Small()
	m.Sharing = "bitwise"
	spared := map[serve.Lists]float64{}
	for _, lists := range []serve.Lists{serve.ListsByHost, serve.ListsByDevice} {
		b := newBench(t, m, serve.Options{Pages: 500})
		g, err := b.Record(ctx, serve.GraphSize{Tokens: 3, Context: 1000, Lists: lists})
		if err != nil {
			t.Fatal(err)
		}
		chunk := b.Register(t, toy.Document(1, 300))
		var batch []serve.Entry
		for range 3 {
			s, err := b.Engine.Open(kvcache.Pack(chunk), kvcache.Packed)
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
		}
		for step := range steps {
			if _, err := g.Step(ctx, batch, []int32{1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			if lists == serve.ListsByDevice && step == 32 && sparedBytes(t, b.Engine) == 0 {
				t.Error("after 32 steps nothing is counted")
			}
		}
		if err := g.Close(ctx); err != nil {
			t.Fatal(err)
		}
		g.Free()
		spared[lists] = sparedBytes(t, b.Engine)
	}
	if host, device := spared[serve.ListsByHost], spared[serve.ListsByDevice]; host == 0 || host != device {
		t.Errorf("%g bytes are spared by the host's lists, %g by the device's", host, device)
	}
}
