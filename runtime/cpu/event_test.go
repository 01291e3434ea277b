package cpu

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/cuda"
)

func TestEvents(t *testing.T) {
	d := open(t, Options{})
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := d.WaitEvent(ctx, e); err != nil {
		t.Errorf("never recorded: %v", err)
	}
	// The device stops at a mark that nobody has taken yet.
	before, behind := make(chan struct{}), make(chan struct{})
	d.queue <- operation{done: before}
	if err := d.Record(e, s); err != nil {
		t.Fatal(err)
	}
	d.queue <- operation{done: behind}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := d.WaitEvent(short, e); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("work before the mark has not ended: %v", err)
	}
	<-before
	for range 2 { // work behind the mark has not ended
		if err := d.WaitEvent(ctx, e); err != nil {
			t.Error(err)
		}
	}
	// Recorded again it is another mark.
	if err := d.Record(e, s); err != nil {
		t.Fatal(err)
	}
	short, cancel = context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := d.WaitEvent(short, e); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("recorded again: %v", err)
	}
	<-behind
	if err := d.WaitEvent(ctx, e); err != nil {
		t.Error(err)
	}

	_, err = d.Capture(s, func() error { return d.Record(e, s) })
	wantError(t, "captured", err, "record event: the stream is captured")
	wantError(t, "no stream", d.Record(e, 99), "record event: stream 99")
	wantError(t, "no event", d.Record(e+1, s), "record event: event 2 was not made by this device")
	wantError(t, "no event", d.WaitEvent(ctx, e+1), "wait for event: event 2")
	wantError(t, "no stream", d.Follow(99, s, e), "follow a stream: stream 99")
	wantError(t, "no stream", d.Follow(s, 99, e), "follow a stream: stream 99")
	wantError(t, "no event", d.Follow(s, s, e+1), "follow a stream: record event: event 2")
	if err := d.DestroyEvent(e); err != nil {
		t.Error(err)
	}
	wantError(t, "twice", d.DestroyEvent(e), "destroy event: event 1 was not made by this device, or was destroyed")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NewEvent(); !errors.Is(err, cuda.ErrClosed) {
		t.Error(err)
	}
	if err := d.Record(e, s); !errors.Is(err, cuda.ErrClosed) {
		t.Error(err)
	}
}

// A stream that follows one that is captured is captured with it, to the end.
func TestFollow(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	var streams [3]cuda.Stream
	for i := range streams {
		var err error
		if streams[i], err = d.NewStream(); err != nil {
			t.Fatal(err)
		}
	}
	s, side, third := streams[0], streams[1], streams[2]
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	work := func() error {
		return errors.Join(
			d.Fill(s, p, 1, 8),
			d.Follow(side, s, e), d.Fill(side, p, 2, 6), d.Fill(s, p+6, 3, 2),
			d.Follow(s, side, e), d.Fill(s, p+1, 4, 1))
	}
	holds := func(want ...byte) {
		t.Helper()
		if err := d.Synchronize(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 8)
		if err := d.Download(got, p); err != nil || !bytes.Equal(got, want) {
			t.Errorf("memory %v, %v; want %v", got, err, want)
		}
	}
	done := []byte{2, 4, 2, 2, 2, 2, 3, 3}
	if err := work(); err != nil {
		t.Fatal(err)
	}
	holds(done...)
	if err := d.Fill(s, p, 0, 8); err != nil {
		t.Fatal(err)
	}
	g, err := d.Capture(s, work)
	if err != nil {
		t.Fatal(err)
	}
	holds(make([]byte, 8)...)
	if err := d.Fill(side, p, 9, 8); err != nil { // which is not captured any more
		t.Fatal(err)
	}
	holds(9, 9, 9, 9, 9, 9, 9, 9)
	// One that is captured follows none that is not, or that is captured into another graph.
	_, err = d.Capture(s, func() error {
		wantError(t, "not captured", d.Follow(s, side, e), "follow a stream: stream 1 is captured apart from stream 2")
		_, err := d.Capture(side, func() error { return d.Follow(s, side, e) })
		wantError(t, "another graph", err, "follow a stream: stream 1 is captured apart from stream 2")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := g.Launch(s); err != nil {
		t.Fatal(err)
	}
	holds(done...)

	// A stream that takes part is followed to its end, if by way of another.
	_, err = d.Capture(s, func() error {
		return errors.Join(d.Follow(side, s, e), d.Fill(side, p, 2, 8), d.Follow(s, side, e), d.Fill(side, p, 3, 8))
	})
	wantError(t, "a fill that nobody follows", err, "capture: stream 1 does not follow stream 2 to its end")
	for name, end := range map[string]func() error{
		"nothing on it": func() error { return nil },
		"twice": func() error {
			return errors.Join(d.Fill(side, p, 2, 8), d.Follow(s, side, e), d.Follow(side, s, e), d.Fill(side, p, 3, 8), d.Follow(s, side, e))
		},
		"a third": func() error {
			return errors.Join(d.Fill(side, p, 2, 8), d.Follow(third, side, e), d.Follow(s, third, e))
		},
	} {
		if _, err := d.Capture(s, func() error { return errors.Join(d.Follow(side, s, e), end()) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := d.Fill(side, p, 5, 8); err != nil { // not captured any more
		t.Fatal(err)
	}
	holds(5, 5, 5, 5, 5, 5, 5, 5)
}
