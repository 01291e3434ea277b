package device

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// Capture keeps f on one thread: the driver wants a capture to begin and end
// on the same one, and refuses calls from it that would spoil the capture.
func (d *device) Capture(s cuda.Stream, f func() error) (cuda.Graph, error) {
	recorded, err := d.capture(s, f)
	if err != nil {
		return nil, err
	}
	g := &graph{device: d}
	err = d.do("cuGraphInstantiateWithFlags", func(l *Library) Code { return l.GraphInstantiate(&g.exec, recorded, 0) })
	if e := d.destroyGraph(recorded); err == nil && e != nil {
		return nil, errors.Join(e, g.Destroy())
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// capture ends the capture even where f panics.
func (d *device) capture(s cuda.Stream, f func() error) (recorded uintptr, err error) {
	if s == 0 {
		return 0, errors.New("cuStreamBeginCapture: the default stream cannot be captured; make one with NewStream")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = d.do("cuStreamBeginCapture", func(l *Library) Code {
		return l.BeginCapture(uintptr(s), captureThreadLocal)
	})
	if err != nil {
		return 0, err
	}
	returned := false
	defer func() {
		e := d.do("cuStreamEndCapture", func(l *Library) Code { return l.EndCapture(uintptr(s), &recorded) })
		if err == nil && e != nil {
			err = e
		}
		if (err != nil || !returned) && recorded != 0 {
			err = errors.Join(err, d.destroyGraph(recorded))
			recorded = 0
		}
	}()
	err = f()
	returned = true
	if err != nil {
		return 0, fmt.Errorf("capture: %w", err)
	}
	return 0, nil
}

func (d *device) destroyGraph(recorded uintptr) error {
	return d.do("cuGraphDestroy", func(l *Library) Code { return l.GraphDestroy(recorded) })
}

type graph struct {
	device *device
	exec   uintptr
}

func (g *graph) Launch(s cuda.Stream) error {
	return g.device.do("cuGraphLaunch", func(l *Library) Code { return l.GraphLaunch(g.exec, uintptr(s)) })
}

func (g *graph) Destroy() error {
	return g.device.do("cuGraphExecDestroy", func(l *Library) Code { return l.GraphExecDestroy(g.exec) })
}
