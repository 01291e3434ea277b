package device

import (
	"context"
	"errors"
	"time"

	"github.com/kgen-project/kgen/runtime/cuda"
)

func (d *device) NewEvent() (cuda.Event, error) { return d.newEvent(eventDisableTiming) }

func (d *device) newEvent(flags uint32) (cuda.Event, error) {
	var e uintptr
	err := d.do("cuEventCreate", func(l *Library) Code { return l.EventCreate(&e, flags) })
	if err != nil {
		return 0, err
	}
	return cuda.Event(e), nil
}

func (d *device) DestroyEvent(e cuda.Event) error {
	return d.do("cuEventDestroy", func(l *Library) Code { return l.EventDestroy(uintptr(e)) })
}

func (d *device) Record(e cuda.Event, s cuda.Stream) error {
	return d.do("cuEventRecord", func(l *Library) Code { return l.EventRecord(uintptr(e), uintptr(s)) })
}

func (d *device) Follow(s, after cuda.Stream, e cuda.Event) error {
	if err := d.Record(e, after); err != nil {
		return err
	}
	return d.do("cuStreamWaitEvent", func(l *Library) Code { return l.StreamWaitEvent(uintptr(s), uintptr(e), 0) })
}

// WaitEvent asks the driver as Synchronize does.
func (d *device) WaitEvent(ctx context.Context, e cuda.Event) error {
	return d.poll(ctx, "cuEventQuery", func(l *Library) Code { return l.EventQuery(uintptr(e)) })
}

// Time returns the time between two events around what f launches.
func (d *device) Time(ctx context.Context, s cuda.Stream, f func() error) (_ time.Duration, err error) {
	var events [2]cuda.Event
	for i := range events {
		if events[i], err = d.newEvent(0); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, d.DestroyEvent(events[i])) }()
	}
	if err := d.Record(events[0], s); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := d.Record(events[1], s); err != nil {
		return 0, err
	}
	if err := d.Synchronize(ctx, s); err != nil {
		return 0, err
	}
	var milliseconds float32
	err = d.do("cuEventElapsedTime", func(l *Library) Code {
		return l.EventElapsedTime(&milliseconds, uintptr(events[0]), uintptr(events[1]))
	})
	if err != nil {
		return 0, err
	}
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), nil
}
