package cpu

import (
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// graph is the operations that were recorded.
type graph struct {
	device     *Device
	operations []operation
	destroyed  bool
}

// Capture records what f launches on s, also from other goroutines.
func (d *Device) Capture(s cuda.Stream, f func() error) (cuda.Graph, error) {
	if s == 0 {
		return nil, errors.New("capture: the default stream cannot be captured; make one with NewStream")
	}
	g := &graph{device: d}
	busy := false
	err := d.withStream(s, func(s *stream) {
		if busy = s.recording != nil; !busy {
			s.recording = g
		}
	})
	if err == nil && busy {
		err = errors.New("the stream is captured already")
	}
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if err := d.record(g, s, f); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return g, nil
}

// record ends the capture even where f panics.
func (d *Device) record(g *graph, s cuda.Stream, f func() error) (err error) {
	defer func() {
		if unjoined := d.endCapture(g, s); err == nil {
			err = unjoined
		}
	}()
	return f()
}

// endCapture ends the capture of s for all streams that are a part of it. Each of them must
// have been followed to its end, by s or by what s follows; CUDA asks for that too.
func (d *Device) endCapture(g *graph, s cuda.Stream) error {
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	var behind map[cuda.Stream]int
	if captured := d.find(s); captured != nil {
		behind = captured.behind
	}
	var err error
	for i := range d.streams {
		other := &d.streams[i]
		if other.recording != g {
			continue
		}
		if other.id != s && behind[other.id] < other.recorded {
			err = fmt.Errorf("stream %d does not follow stream %d to its end", s, other.id)
		}
		other.recording, other.recorded, other.behind = nil, 0, nil
	}
	return err
}

func (g *graph) Launch(s cuda.Stream) error {
	if g.destroyed {
		return errors.New("launch graph: it is destroyed")
	}
	for _, op := range g.operations {
		op.stream = s
		if err := g.device.enqueue(op); err != nil {
			return fmt.Errorf("launch graph: %w", err)
		}
	}
	return nil
}

func (g *graph) Destroy() error {
	g.operations, g.destroyed = nil, true
	return nil
}
