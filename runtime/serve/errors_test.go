package serve_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
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

func TestNewErrors(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1, MemoryBytes: 1 << 20})
	defer dev.Close()
	kernels := unshared{cpuKernels(t, dev, toy.Small())} // which don't tell what they were made for
	for _, c := range []struct {
		change func(*serve.Model, *serve.Options)
		want   string
	}{
		{func(m *serve.Model, _ *serve.Options) { m.Group = 0 }, "the model's Group is 0"},
		{func(m *serve.Model, _ *serve.Options) { m.PageSize = 12 }, "the model's PageSize is 12, want a power of two"},
		{func(m *serve.Model, _ *serve.Options) { m.Group = 100 }, "a token's group of query heads takes 100"},
		{func(m *serve.Model, _ *serve.Options) { m.Encoding = "packed" }, `Encoding is "packed", want segment, raw or baked`},
		{func(m *serve.Model, _ *serve.Options) { m.Sharing = "both" }, `Sharing is "both", want fastest or bitwise`},
		{func(m *serve.Model, _ *serve.Options) { m.Batching = "both" }, `Batching is "both", want fastest or bitwise`},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = 0 }, "Scale is 0"},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = float32(math.NaN()) }, "Scale is NaN and its RopeScale 1: both must be positive and finite"},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = float32(math.Inf(1)) }, "Scale is +Inf"},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = -1 }, "Scale is -1"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = 0 }, "RopeScale 0: both must be"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = float32(math.NaN()) }, "RopeScale NaN"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = float32(math.Inf(-1)) }, "RopeScale -Inf"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = -1 }, "RopeScale -1"},
		{func(m *serve.Model, _ *serve.Options) {
			m.Rope.RotaryDim, m.Rope.Frequencies = 7, m.Rope.Frequencies[:3]
		}, "Rope rotates 7 of 8 dimensions"},
		{func(m *serve.Model, _ *serve.Options) { m.Rope.Pairing = "both" }, `Rope.Pairing is "both", want half or interleaved`},
		{func(m *serve.Model, _ *serve.Options) { m.Window = math.MaxInt32 + 1 }, "Window is 2147483648, SinkTokens 0: want at most 2147483647"},
		{func(m *serve.Model, _ *serve.Options) { m.SinkTokens = math.MaxInt32 + 1 }, "SinkTokens 2147483648: want at most"},
		{func(m *serve.Model, _ *serve.Options) { m.DType = "fp8" }, `DType is "fp8", want bf16 or fp16`},
		{func(m *serve.Model, _ *serve.Options) { m.SoftCap = -1 }, "SoftCap is -1: it must not be negative"},
		{func(m *serve.Model, _ *serve.Options) { m.SoftCap = math.NaN() }, "SoftCap is NaN"},
		{func(m *serve.Model, _ *serve.Options) { m.Window = -1 }, "Window is -1"},
		{func(m *serve.Model, _ *serve.Options) { m.MaxPosition = 5000 }, "MaxPosition is 5000, and its RoPE table ends at 4096"},
		{func(m *serve.Model, _ *serve.Options) { m.Rope.MaxPosition = 0 }, "at positions below 0"},
		{func(m *serve.Model, _ *serve.Options) { m.Rope.Frequencies = m.Rope.Frequencies[1:] }, "by 3 frequencies"},
		{func(m *serve.Model, _ *serve.Options) { m.Layers = 0 }, "Layers is 0"},
		{func(_ *serve.Model, o *serve.Options) { o.Pages = 0 }, "0 pages"},
		{func(_ *serve.Model, o *serve.Options) { o.Pages = 1 << 16 }, "out of device memory"},
	} {
		m, o := toy.Small(), serve.Options{Pages: 10}
		c.change(&m, &o)
		if _, err := serve.New(dev, kernels, m, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// specified are kernels of a spec.
type specified struct {
	serve.Kernels
	digest string
	spec   kernel.Spec
}

func (k specified) SpecDigest() string { return k.digest }
func (k specified) Spec() kernel.Spec  { return k.spec }

// without are kernels of which one kind is missing.
type without struct {
	serve.Kernels
	kind abi.Kind
}

func (k without) Tile(kind abi.Kind) (rows, keys int) {
	if kind == k.kind {
		return 0, 0
	}
	return k.Kernels.Tile(kind)
}

func (k without) Artifact(kind abi.Kind) (kernel.Artifact, bool) {
	return kernel.Artifact{}, kind != k.kind
}

func TestMissingKernels(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	m := toy.Small()
	for _, kind := range []abi.Kind{abi.KindAppend, abi.KindPrefill, abi.KindExtend, abi.KindDecode, abi.KindMerge} {
		_, err := serve.New(dev, without{cpuKernels(t, dev, m), kind}, m, serve.Options{Pages: 10})
		if want := "the kernels have no " + string(kind) + ": add it"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestOtherSpecsKernels(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	m := toy.Small()
	right := kernel.Spec{
		KVHeads: 8, Group: m.Group, HeadDim: m.HeadDim, VHeadDim: m.VHeadDim, PageSize: m.PageSize, Encoding: m.Encoding,
		Sharing: "bitwise", Rope: m.Rope, Causal: true,
	}
	windowed := right
	windowed.Window, windowed.SinkTokens = 100, 4
	capped := right // right's package is too old to say so
	capped.DType, capped.SoftCap, capped.SinkLogits = "fp16", 30, true
	for _, c := range []struct {
		digest string
		spec   kernel.Spec
		want   string
	}{
		{m.SpecDigest, right, ""},
		{m.SpecDigest, kernel.Spec{}, ""},
		{"another", right, `the kernels are of the spec with digest "another", and the model's SpecDigest is "digest"`},
		{m.SpecDigest, windowed, "Window of the kernels' spec is 100, and of the model 0\nSinkTokens of the kernels' spec is 4, and of the model 0"},
		{m.SpecDigest, capped, "SinkLogits of the kernels' spec is true, and of the model false\nSoftCap of the kernels' spec is 30, and of the model 0"},
	} {
		e, err := serve.New(dev, specified{cpuKernels(t, dev, m), c.digest, c.spec}, m, serve.Options{Pages: 10})
		if err == nil {
			err = e.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// The CPU's kernels are held to as the GPU's are, as far as they know a spec.
func TestOtherCPUKernels(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	for _, c := range []struct {
		change func(*serve.Model)
		want   string
	}{
		{func(*serve.Model) {}, ""},
		{func(m *serve.Model) { m.DType = "bf16" }, ""},
		{func(m *serve.Model) { m.Causal = false }, ""}, // each run says it
		{func(m *serve.Model) { m.DType = "fp16" }, "DType of the kernels' spec is bf16, and of the model fp16"},
		{func(m *serve.Model) { m.Group = 4 }, "Group of the kernels' spec is 2, and of the model 4"},
		{func(m *serve.Model) { m.HeadDim = 16 }, "HeadDim of the kernels' spec is 8, and of the model 16"},
		{func(m *serve.Model) { m.VHeadDim = 16 }, "VHeadDim of the kernels' spec is 8, and of the model 16"},
		{func(m *serve.Model) { m.PageSize = 8 }, "PageSize of the kernels' spec is 4, and of the model 8"},
		{func(m *serve.Model) { m.Encoding = "raw" }, "Encoding of the kernels' spec is segment, and of the model raw"},
		{func(m *serve.Model) { m.Rope.Pairing = "interleaved" }, "Rope.Pairing of the kernels' spec is half, and of the model interleaved"},
		{func(m *serve.Model) { m.Window, m.SinkTokens = 9, 1 }, "Window of the kernels' spec is 0, and of the model 9\nSinkTokens of the kernels' spec is 0, and of the model 1"},
		{func(m *serve.Model) { m.SinkLogits = true }, "SinkLogits of the kernels' spec is false, and of the model true"},
		{func(m *serve.Model) { m.SoftCap = 50 }, "SoftCap of the kernels' spec is 0, and of the model 50"},
	} {
		m := toy.Small()
		c.change(&m)
		e, err := serve.New(dev, cpuKernels(t, dev, toy.Small()), m, serve.Options{Pages: 10})
		if err == nil {
			err = e.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// Logits are there for kernels that read them, and for no others.
func TestSinkLogits(t *testing.T) {
	for has, c := range map[bool]struct {
		given abi.DevicePtr
		want  string
	}{
		true:  {0, "attend layer 0: sink logits are null, and the model has SinkLogits"},
		false: {16, "attend layer 0: sink logits 0x10: they must be null, as the model has no SinkLogits"},
	} {
		m := toy.Small()
		m.SinkLogits = has
		b := newBench(t, m, serve.Options{Pages: 10})
		s, err := b.Engine.Open(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		step, err := b.Engine.Schedule(t.Context(), []serve.Entry{{Sequence: s, Tokens: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer step.Abort()
		io := serve.IO{Q: 16, K: 16, V: 16, Out: 16, SinkLogits: c.given}
		if err := step.Attend(0, io); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
		io.SinkLogits = 16 - c.given
		if err := step.Attend(0, io); err != nil {
			t.Error(err)
		}
	}
}

func TestNamedErrors(t *testing.T) {
	ctx := t.Context()
	b := newBench(t, toy.Small(), serve.Options{Pages: 20})
	other := newBench(t, toy.Small(), serve.Options{Pages: 20})
	open := func(b *toy.Bench) *serve.Sequence {
		s, err := b.Engine.Open(nil, kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s, foreign := open(b), open(other)
	check := func(name string, err error, want any) {
		t.Helper()
		switch want := want.(type) {
		case error:
			if !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", name, err, want)
			}
		case string:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %q in it", name, err, want)
			}
		}
	}
	schedule := func(batch ...serve.Entry) error {
		step, err := b.Engine.Schedule(ctx, batch)
		if err == nil {
			step.Abort()
		}
		return err
	}
	check("no sequences", schedule(), "an empty batch")
	check("no tokens", schedule(serve.Entry{Sequence: s}), "entry 0: 0 new tokens, want at least 1")
	check("another engine's", schedule(serve.Entry{Sequence: s, Tokens: 1}, serve.Entry{Sequence: foreign, Tokens: 1}), "entry 1: not a sequence of this engine")
	check("twice in a batch", schedule(serve.Entry{Sequence: s, Tokens: 1}, serve.Entry{Sequence: s, Tokens: 1}), serve.ErrBusy)
	check("twice in a batch", schedule(serve.Entry{Sequence: s, Tokens: 1}, serve.Entry{Sequence: s, Tokens: 1}), "entry 1: the sequence: in a step that is neither committed nor aborted: it is in the batch twice")
	check("too long", schedule(serve.Entry{Sequence: s, Tokens: 5000}), kvcache.ErrPosition)
	err := schedule(serve.Entry{Sequence: s, Tokens: 90})
	check("too large", err, serve.ErrNoPages)
	check("too large", err, "23 needed, 20 free")
	var pages *kvcache.NoPagesError
	if !errors.As(err, &pages) || pages.Needed != 23 {
		t.Errorf("error %v", err)
	}

	step, err := b.Engine.Schedule(ctx, []serve.Entry{{Sequence: s, Tokens: 2}})
	if err != nil {
		t.Fatal(err)
	}
	check("in a step", schedule(serve.Entry{Sequence: s, Tokens: 1}), serve.ErrBusy)
	_, err = s.Fork()
	check("fork in a step", err, serve.ErrBusy)
	check("truncate in a step", s.Truncate(0), serve.ErrBusy)
	check("place in a step", s.Place(nil, 0), serve.ErrBusy)
	check("close in a step", s.Close(), serve.ErrBusy)
	check("no such layer", step.Attend(2, serve.IO{Q: 16, K: 16, V: 16, Out: 16}), "the model has layers 0 to 1")
	check("a null pointer", step.Attend(0, serve.IO{Q: 16, K: 16, V: 16}), "out 0x0: none may be null")
	for _, c := range []struct {
		io   serve.IO
		want string
	}{
		{serve.IO{Q: 16, K: 24, V: 16, Out: 16}, "k 0x18, v 0x10, out 0x10: all must be multiples of 16 bytes"},
		{serve.IO{Q: 16, K: 16, V: 16, Out: 16, LSE: 2}, "lse 0x2, sink logits 0x0: both must be multiples of 4 bytes"},
		{serve.IO{Q: 16, K: 16, V: 16, Out: 16, QStride: 36}, "the stride of q is 36 elements, want 0 or a multiple of 8 from 32 to 2147483647"},
		{serve.IO{Q: 16, K: 16, V: 16, Out: 16, KStride: -16}, "the stride of k is -16 elements, want 0 or a multiple of 8 from 16 "},
		{serve.IO{Q: 16, K: 16, V: 16, Out: 16, VStride: 8}, "the stride of v is 8 elements"},
		{serve.IO{Q: 16, K: 16, V: 16, Out: 16, OutStride: 1 << 31}, "the stride of out is 2147483648 elements"},
	} {
		check("a bad tensor", step.Attend(0, c.io), c.want)
	}
	check("no graph", step.Launch(), "not of a graph")
	check("nothing attended", step.Commit(), serve.ErrIncomplete)
	check("ended", step.Commit(), serve.ErrEnded)
	check("ended", step.Wait(ctx), serve.ErrEnded)
	check("ended", step.Attend(0, serve.IO{}), serve.ErrEnded)
	check("ended", step.Launch(), serve.ErrEnded)
	step.Abort()
	if s.Tokens() != 0 {
		t.Errorf("%d tokens are left", s.Tokens())
	}
	check("a chunk of no tokens", func() error { _, err := b.Engine.Register(ctx, nil, nil); return err }(), "a chunk of no tokens")

	register := func(encode serve.Encode) error {
		_, err := b.Engine.Register(ctx, toy.Document(1, 9), encode)
		return err
	}
	check("no encode", register(nil), "encode is nil, want a function")
	check("an encode that panics", register(func(context.Context, *serve.Step) error { panic("broken") }), "encode panicked: broken")
	if s := b.Engine.Cache().Stats(); s.Chunks != 0 || s.PagesUsed != 0 {
		t.Errorf("left: %+v", s)
	}

	// A kernel that goes wrong after its launch.
	step, err = b.Engine.Schedule(ctx, []serve.Entry{{Sequence: s, Tokens: 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := step.Attend(0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}); err != nil {
		t.Fatal(err)
	}
	check("a kernel failed", step.Wait(ctx), serve.ErrLaunch)
	check("a failed step", step.Attend(1, serve.IO{Q: 16, K: 16, V: 16, Out: 16}), serve.ErrLaunch)
	check("a failed step", step.Commit(), serve.ErrLaunch)
	tokens := toy.Document(1, 2)
	outs, err := b.Step(ctx, []serve.Entry{{Sequence: s, Tokens: 2}}, tokens)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Compare(&toy.Request{Own: tokens}, 2, outs, 0); err != nil {
		t.Error(err)
	}
	check("truncated too far", s.Truncate(3), "want 0 to 2")
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	check("a closed sequence", schedule(serve.Entry{Sequence: s, Tokens: 1}), serve.ErrClosed)
	check("a closed sequence", s.Place(nil, 0), serve.ErrClosed)
}

// With a closed engine, everything says so, and nothing hangs.
func TestClosed(t *testing.T) {
	ctx := t.Context()
	b := newBench(t, toy.Small(), serve.Options{Pages: 50})
	c := b.Register(t, toy.Document(1, 10))
	s, err := b.Engine.Open(kvcache.Pack(c), kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	third, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	g, err := b.Record(ctx, serve.GraphSize{Tokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Free()
	step, err := b.Engine.Schedule(ctx, []serve.Entry{{Sequence: s, Tokens: 1}})
	if err != nil {
		t.Fatal(err)
	}
	attended, err := b.Engine.Schedule(ctx, []serve.Entry{{Sequence: other, Tokens: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Forward(ctx, attended, []int32{1}); err != nil {
		t.Fatal(err)
	}
	encoding, ended := make(chan struct{}), make(chan error)
	go func() {
		_, err := b.Engine.Register(ctx, toy.Document(2, 10), func(ctx context.Context, _ *serve.Step) error {
			close(encoding)
			<-ctx.Done()
			return ctx.Err()
		})
		ended <- err
	}()
	<-encoding
	if err := b.Engine.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, serve.ErrClosed) && !errors.Is(err, context.Canceled) {
		t.Errorf("an encode that was cut off: %v", err)
	}
	for name, f := range map[string]func() error{
		"close":          b.Engine.Close,
		"register":       func() error { _, err := b.Engine.Register(ctx, toy.Document(3, 10), nil); return err },
		"open":           func() error { _, err := b.Engine.Open(nil, 0); return err },
		"schedule":       func() error { _, err := b.Engine.Schedule(ctx, []serve.Entry{{Sequence: s, Tokens: 1}}); return err },
		"capture":        func() error { _, err := b.Engine.Capture(ctx, serve.GraphSize{Tokens: 1}, nil); return err },
		"place":          func() error { return third.Place(nil, 0) },
		"graph schedule": func() error { _, err := g.Schedule(ctx, []serve.Entry{{Sequence: s, Tokens: 1}}); return err },
		"graph close":    func() error { return g.Close(ctx) },
		"attend":         func() error { return step.Attend(0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}) },
		"wait":           func() error { return step.Wait(ctx) },
	} {
		if err := f(); !errors.Is(err, serve.ErrClosed) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if err := step.Commit(); !errors.Is(err, serve.ErrClosed) {
		t.Errorf("commit: error %v", err)
	}
	if err := attended.Commit(); !errors.Is(err, serve.ErrClosed) {
		t.Errorf("commit of a step with all layers: error %v", err)
	}
	if err := step.Commit(); !errors.Is(err, serve.ErrEnded) {
		t.Errorf("a second commit: error %v", err)
	}
	if err := s.Close(); err != nil && !errors.Is(err, serve.ErrClosed) {
		t.Error(err)
	}
}

// Of two that want one document, one may give up; when both have, so does the
// encode, and the next request is served.
func TestCancelledRegister(t *testing.T) {
	b := newBench(t, toy.Small(), serve.Options{Pages: 50})
	d := toy.Document(1, 10)
	started, gone := make(chan struct{}), make(chan struct{})
	hang := func(ctx context.Context, _ *serve.Step) error {
		close(started)
		<-ctx.Done()
		close(gone)
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			if _, err := b.Engine.Register(ctx, d, hang); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
	}
	<-started
	for b.Engine.Cache().Stats().Joins == 0 { // the other is to wait for it
		time.Sleep(time.Millisecond)
	}
	cancel()
	group.Wait()
	<-gone
	b.Register(t, d).Release()
	if s := b.Engine.Cache().Stats(); s.Chunks != 1 || s.Encodes != 1 {
		t.Errorf("%+v", s)
	}
}

func TestNoGoroutinesLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	dev := cpu.Open(cpu.Options{Workers: 2})
	m := toy.Small()
	e, err := serve.New(dev, cpuKernels(t, dev, m), m, serve.Options{Pages: 50})
	if err != nil {
		t.Fatal(err)
	}
	b := toy.New(dev, e, m)
	b.Register(t, toy.Document(1, 9))
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	go func() { <-started; cancel() }()
	_, err = e.Register(ctx, toy.Document(2, 9), func(ctx context.Context, _ *serve.Step) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if err := errors.Join(e.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	for range 2000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	stacks := make([]byte, 1<<16)
	t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}

// interrupted is a device on which somebody gives up while a stream is waited for.
type interrupted struct {
	faultyCopier
	giveUp func()
}

func (d *interrupted) Synchronize(ctx context.Context, s cuda.Stream) error {
	d.giveUp()
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.faultyCopier.Synchronize(ctx, s)
}

// Who gives up while the device is waited for gets the context's error, and not that a kernel failed.
func TestGivenUp(t *testing.T) {
	m := toy.Small()
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	f := newFaulty(dev, cpuKernels(t, dev, m), func(int, string) bool { return false })
	nobody := func() {}
	d := &interrupted{faultyCopier{f}, nobody}
	e, err := serve.New(d, f, m, serve.Options{Pages: 200})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b := toy.New(dev, e, m)
	s, err := e.Open(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Step(t.Context(), []serve.Entry{{Sequence: s, Tokens: 1}}, []int32{1}); err != nil {
		t.Fatal(err)
	}
	g, err := b.Record(t.Context(), serve.GraphSize{Tokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Free()
	for name, f := range map[string]func(ctx context.Context) error{
		"a step with larger lists than before": func(ctx context.Context) error {
			step, err := e.Schedule(ctx, []serve.Entry{{Sequence: s, Tokens: 500}})
			if err == nil {
				step.Abort()
			}
			return err
		},
		"close a graph": g.Close,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		d.giveUp = cancel
		if err := f(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, serve.ErrLaunch) {
			t.Errorf("%s: error %v", name, err)
		}
		d.giveUp = nobody
		if err := f(t.Context()); err != nil || s.Tokens() != 1 {
			t.Errorf("%s, again: error %v, %d own tokens", name, err, s.Tokens())
		}
	}
}
