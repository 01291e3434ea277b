package cpu

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/kgen-project/kgen/runtime/cuda"
)

func (d *Device) NewEvent() (cuda.Event, error) {
	if err := d.open("new event"); err != nil {
		return 0, err
	}
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	d.newest++
	d.events[d.newest] = nil
	return d.newest, nil
}

func (d *Device) DestroyEvent(e cuda.Event) error {
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	if _, ok := d.events[e]; !ok {
		return fmt.Errorf("destroy event: %w", unknownEvent(e))
	}
	delete(d.events, e)
	return nil
}

func unknownEvent(e cuda.Event) error {
	return fmt.Errorf("event %d was not made by this device, or was destroyed", e)
}

func (d *Device) Record(e cuda.Event, s cuda.Stream) error {
	captured := false
	err := d.withStream(s, func(s *stream) { captured = s.recording != nil })
	if captured {
		err = errors.New("the stream is captured")
	}
	mark := make(chan struct{})
	if err == nil {
		err = d.enqueue(operation{stream: s, mark: mark})
	}
	if err != nil {
		return fmt.Errorf("record event: %w", err)
	}
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	if _, ok := d.events[e]; !ok {
		return fmt.Errorf("record event: %w", unknownEvent(e))
	}
	d.events[e] = mark
	return nil
}

// follow puts a stream behind so many operations of others.
func (s *stream) follow(behind map[cuda.Stream]int) {
	for other, recorded := range behind {
		if s.behind == nil {
			s.behind = map[cuda.Stream]int{}
		}
		s.behind[other] = max(s.behind[other], recorded)
	}
}

// Follow has nothing to wait for: the device does one thing at a time.
func (d *Device) Follow(s, after cuda.Stream, e cuda.Event) error {
	var g, joined *graph // that after and s are captured into
	var behind map[cuda.Stream]int
	err := d.withStream(after, func(after *stream) {
		if g = after.recording; g != nil {
			behind = map[cuda.Stream]int{}
			maps.Copy(behind, after.behind)
			behind[after.id] = after.recorded
		}
	})
	if err == nil {
		err = d.withStream(s, func(s *stream) {
			if s.recording == nil {
				s.recording = g
			}
			joined = s.recording
			s.follow(behind)
		})
	}
	switch {
	case err != nil:
	case joined != g: // CUDA refuses it too
		err = fmt.Errorf("stream %d is captured apart from stream %d", s, after)
	case g == nil:
		err = d.Record(e, after)
	}
	if err != nil {
		return fmt.Errorf("follow a stream: %w", err)
	}
	return nil
}

func (d *Device) WaitEvent(ctx context.Context, e cuda.Event) error {
	d.streamMu.Lock()
	mark, ok := d.events[e]
	d.streamMu.Unlock()
	if !ok {
		return fmt.Errorf("wait for event: %w", unknownEvent(e))
	}
	if mark == nil {
		return nil
	}
	select {
	case <-mark:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for event: %w", ctx.Err())
	}
}
