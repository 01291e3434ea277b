package serve_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// slow is a device that Wait finds at work for as long as the context lasts.
type slow struct {
	*cpu.Device
	waits chan struct{}
}

// A slow device's Synchronize is called with a context that ends by Step.Wait alone.
func (d slow) Synchronize(ctx context.Context, s cuda.Stream) error {
	if ctx.Done() == nil {
		return d.Device.Synchronize(ctx, s)
	}
	d.waits <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func soon(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Who waits for the device holds nobody up, and who waits for another gives up with its context.
func TestWaiting(t *testing.T) {
	dev := slow{cpu.Open(cpu.Options{Workers: 1}), make(chan struct{}, 10)}
	defer dev.Close()
	m := toy.Tiny()
	e, err := serve.New(dev, cpuKernels(t, dev.Device, m), m, serve.Options{Pages: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx := t.Context()
	var entries []serve.Entry
	for range 3 {
		s, err := e.Open(nil, kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, serve.Entry{Sequence: s, Tokens: 1})
	}
	io := serve.IO{Q: 16, K: 16, V: 16, Out: 16}
	record := func(s *serve.Step) error {
		var errs []error
		for layer := range m.Layers {
			errs = append(errs, s.Attend(ctx, layer, io))
		}
		return errors.Join(errs...)
	}

	// While one waits for the device, others schedule and record, and another aborts the step.
	waited := make(chan error, 1)
	wait := func(ctx context.Context) *serve.Step {
		t.Helper()
		step, err := e.Schedule(ctx, entries[:1])
		if err != nil {
			t.Fatal(err)
		}
		go func() { waited <- step.Wait(ctx) }()
		<-dev.waits
		return step
	}
	patient, giveUp := context.WithTimeout(ctx, 5*time.Second)
	step := wait(patient)
	g, err := e.Capture(ctx, serve.GraphSize{Tokens: 1}, record)
	if err != nil {
		t.Fatal(err)
	}
	other, err := e.Schedule(ctx, entries[1:2])
	if err != nil {
		t.Fatal(err)
	}
	other.Abort()
	step.Abort()
	if patient.Err() != nil {
		t.Error("the others waited for who waits for the device")
	}
	giveUp()
	if err := <-waited; !errors.Is(err, serve.ErrEnded) {
		t.Errorf("wait for a step that was aborted: %v", err)
	}
	step = wait(soon(t, time.Millisecond))
	if err := <-waited; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	step.Abort()

	// While one records, the others wait, and no longer than they want to.
	recording, recorded, done := make(chan struct{}), make(chan struct{}), make(chan error)
	step, err = e.Schedule(ctx, entries[1:2])
	if err != nil {
		t.Fatal(err)
	}
	another, err := e.Capture(ctx, serve.GraphSize{Tokens: 1}, record)
	if err != nil {
		t.Fatal(err)
	}
	ofGraph, err := another.Schedule(ctx, entries[2:])
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := e.Capture(ctx, serve.GraphSize{Tokens: 1}, func(s *serve.Step) error {
			close(recording)
			select {
			case <-recorded:
			case <-time.After(5 * time.Second):
				return errors.New("the others waited for the capture")
			}
			return record(s)
		})
		done <- err
	}()
	<-recording
	for name, f := range map[string]func(context.Context) error{
		"schedule":             func(ctx context.Context) error { _, err := e.Schedule(ctx, entries[:1]); return err },
		"schedule for a graph": func(ctx context.Context) error { _, err := g.Schedule(ctx, entries[:1]); return err },
		"capture": func(ctx context.Context) error {
			_, err := e.Capture(ctx, serve.GraphSize{Tokens: 1}, record)
			return err
		},
		"register": func(ctx context.Context) error {
			_, err := e.Register(ctx, toy.Document(1, 3), func(context.Context, *serve.Step) error { return nil })
			return err
		},
		"attend":      func(ctx context.Context) error { return step.Attend(ctx, 0, io) },
		"launch":      ofGraph.Launch,
		"wait":        step.Wait,
		"close graph": g.Close,
	} {
		if err := f(soon(t, time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	close(recorded)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := record(step); err != nil {
		t.Errorf("a step whose attend gave up: %v", err)
	}
	step.Abort()
	ofGraph.Abort()
	// An encode that nobody waits for any more ends by itself, and gives its pages back then.
	for deadline := time.Now().Add(5 * time.Second); e.Cache().Stats().PagesUsed != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d pages are used", e.Cache().Stats().PagesUsed)
		}
	}
}
