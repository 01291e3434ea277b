package device

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// An event is passed when what was queued before it is done, and not held up by
// what is queued behind it.
func TestEvents(t *testing.T) { eachBinding(t, testEvents) }

func testEvents(t *testing.T, o opener) {
	d := o.gpu(t).(cuda.EventDevice)
	ctx := context.Background()
	s := stream(t, d)
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.WaitEvent(ctx, e); err != nil {
		t.Errorf("never recorded: %v", err)
	}
	const size = 1 << 30
	p := alloc(t, d, size)
	fill := func(times int) {
		for range times {
			if err := d.Fill(s, p, 1, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(1)
	if err := d.Record(e, s); err != nil {
		t.Fatal(err)
	}
	fill(200) // a GiB takes longer than a quarter of a millisecond on any GPU
	start := time.Now()
	if err := d.WaitEvent(ctx, e); err != nil {
		t.Fatal(err)
	}
	marked := time.Since(start)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := d.Record(e, s); err != nil {
		t.Fatal(err)
	}
	if err := d.WaitEvent(gone, e); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was given up: %v", err)
	}
	if err := d.WaitEvent(ctx, e); err != nil {
		t.Fatal(err)
	}
	if all := time.Since(start); marked > all/2 {
		t.Errorf("the mark behind the first of 201 fills was passed after %v of %v", marked, all)
	}
	if err := d.DestroyEvent(e); err != nil {
		t.Error(err)
	}
}

// What follows another stream's work begins behind it, launched and in a graph.
func TestFollow(t *testing.T) { eachBinding(t, testFollow) }

func testFollow(t *testing.T, o opener) {
	d := o.gpu(t).(interface {
		cuda.GraphDevice
		cuda.StreamFollower
	})
	ctx := context.Background()
	s, side := stream(t, d), stream(t, d)
	var events [2]cuda.Event
	for i := range events {
		var err error
		if events[i], err = d.NewEvent(); err != nil {
			t.Fatal(err)
		}
		defer d.DestroyEvent(events[i])
	}
	const size = 1 << 28
	p := alloc(t, d, 2*size)
	work := func() error {
		return errors.Join(
			d.Fill(s, p, 1, 2*size), // the longest first
			d.Follow(side, s, events[0]), d.Fill(side, p, 2, size), d.Fill(s, p+size, 3, size),
			d.Follow(s, side, events[1]), d.Fill(s, p, 4, 2))
	}
	check := func(how string) {
		t.Helper()
		if err := d.Synchronize(ctx, s); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 2*size)
		if err := d.Download(got, p); err != nil {
			t.Fatal(err)
		}
		for i, b := range got {
			want := byte(3)
			if i < 2 {
				want = 4
			} else if i < size {
				want = 2
			}
			if b != want {
				t.Fatalf("%s: byte %d is %d, want %d", how, i, b, want)
			}
		}
	}
	if err := work(); err != nil {
		t.Fatal(err)
	}
	check("launched")
	if err := d.Fill(s, p, 0, 2*size); err != nil {
		t.Fatal(err)
	}
	g, err := d.Capture(s, work)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Destroy()
	if err := g.Launch(s); err != nil {
		t.Fatal(err)
	}
	check("by a graph")
}
