package serve_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// What goes wrong with a step's work is told to that step, whoever waits first.
func TestBlame(t *testing.T) {
	ctx := t.Context()
	b := newBench(t, toy.Small(), serve.Options{Pages: 100})
	schedule := func(tokens int) *serve.Step {
		t.Helper()
		s, err := b.Engine.Open(nil, kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		step, err := b.Engine.Schedule(ctx, []serve.Entry{{Sequence: s, Tokens: tokens}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(step.Abort)
		return step
	}
	nowhere := serve.IO{Q: 16, K: 16, V: 16, Out: 16}
	attend := func(s *serve.Step) {
		t.Helper()
		for layer := range b.Model.Layers {
			if err := s.Attend(ctx, layer, nowhere); err != nil {
				t.Fatal(err)
			}
		}
	}

	bad, good := schedule(2), schedule(40)
	attend(bad)
	if _, err := b.Forward(ctx, good, toy.Document(1, 40)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(good.Wait(ctx), good.Commit()); err != nil {
		t.Errorf("a step of which nothing failed: %v", err)
	}
	if err := bad.Wait(ctx); !errors.Is(err, serve.ErrLaunch) {
		t.Errorf("a step that failed: %v", err)
	}

	// A document whose encode failed is not kept because another has waited.
	other := schedule(1)
	_, err := b.Engine.Register(ctx, toy.Document(2, 9), func(ctx context.Context, s *serve.Step) error {
		attend(s)
		return other.Wait(ctx)
	})
	if !errors.Is(err, serve.ErrLaunch) || b.Engine.Cache().Stats().Chunks != 0 {
		t.Errorf("register: %v, %d chunks", err, b.Engine.Cache().Stats().Chunks)
	}
	if err := other.Wait(ctx); err != nil {
		t.Error(err)
	}

	// Nobody waits for a step that is aborted; those behind one that is committed build on it.
	aborted := schedule(1)
	attend(aborted)
	aborted.Abort()
	if err := other.Wait(ctx); err != nil {
		t.Errorf("behind a step that was aborted: %v", err)
	}
	committed := schedule(1)
	attend(committed)
	if err := committed.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := other.Wait(ctx); !errors.Is(err, serve.ErrLaunch) {
		t.Errorf("behind a step that was committed: %v", err)
	}
}
