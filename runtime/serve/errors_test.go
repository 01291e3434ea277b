package serve_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

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
	check("no such layer", step.Attend(ctx, 2, serve.IO{Q: 16, K: 16, V: 16, Out: 16}), "the model has layers 0 to 1")
	check("a null pointer", step.Attend(ctx, 0, serve.IO{Q: 16, K: 16, V: 16}), "out 0x0: none may be null")
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
		check("a bad tensor", step.Attend(ctx, 0, c.io), c.want)
	}
	check("no graph", step.Launch(ctx), "not of a graph")
	check("nothing attended", step.Commit(), serve.ErrIncomplete)
	check("ended", step.Commit(), serve.ErrEnded)
	check("ended", step.Wait(ctx), serve.ErrEnded)
	check("ended", step.Attend(ctx, 0, serve.IO{}), serve.ErrEnded)
	check("ended", step.Launch(ctx), serve.ErrEnded)
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
	if err := step.Attend(ctx, 0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}); err != nil {
		t.Fatal(err)
	}
	check("a kernel failed", step.Wait(ctx), serve.ErrLaunch)
	check("a failed step", step.Attend(ctx, 1, serve.IO{Q: 16, K: 16, V: 16, Out: 16}), serve.ErrLaunch)
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
		"attend":         func() error { return step.Attend(ctx, 0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}) },
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
