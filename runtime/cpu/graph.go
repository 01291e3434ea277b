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
	defer d.endCapture(g)
	if err := f(); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return g, nil
}

// endCapture ends it for all streams that are a part of it.
func (d *Device) endCapture(g *graph) {
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	for i := range d.streams {
		if d.streams[i].recording == g {
			d.streams[i].recording = nil
		}
	}
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
