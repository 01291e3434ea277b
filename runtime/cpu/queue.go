package cpu

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// operation is one entry of the queue: a launch, a copy, a fill, or a mark that
// somebody waits for.
type operation struct {
	stream  cuda.Stream
	kernels *Kernels
	kind    abi.Kind // of a launch
	tasks   int      // of a launch: the first dimension of its grid

	attend      abi.AttendParams
	append      abi.AppendParams
	merge       abi.MergeParams
	materialise abi.MaterialiseParams
	schedule    abi.ScheduleParams

	copy blockCopy
	fill fill
	done chan struct{} // of a mark that one waits for, who gets a value
	mark chan struct{} // of an event's: it is closed
}

type fill struct {
	dst   abi.DevicePtr
	value byte
	n     int64
}

// jobs are the launch at work, one at a time, kept so that none is allocated.
type jobs struct {
	attend      attendJob
	append      appendJob
	merge       mergeJob
	materialise materialiseJob
	schedule    scheduleJob
}

// enqueue queues an operation, or records it where its stream is captured. It
// waits while the queue is full.
func (d *Device) enqueue(op operation) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return cuda.ErrClosed
	}
	recorded := false
	err := d.withStream(op.stream, func(s *stream) {
		if s.recording != nil {
			s.recording.operations = append(s.recording.operations, op)
			s.recorded++
			recorded = true
			return
		}
		s.queued++
	})
	if err != nil || recorded {
		return err
	}
	d.queue <- op
	return nil
}

// serve carries out the queue.
func (d *Device) serve() {
	defer close(d.ended)
	for op := range d.queue {
		if op.done != nil {
			op.done <- struct{}{}
			continue
		}
		var failure error
		if op.mark == nil {
			if err := d.execute(&op); err != nil {
				failure = fmt.Errorf("%w: %w", cuda.ErrLaunch, err)
			}
		}
		// A stream that was destroyed meanwhile has nobody to tell.
		_ = d.withStream(op.stream, func(s *stream) { d.done(s, failure) })
		if op.mark != nil {
			close(op.mark)
		}
	}
}

func (d *Device) execute(op *operation) error {
	if op.copy.blocks.Count > 0 {
		return d.copyBlocks(&op.copy)
	}
	if op.kernels == nil {
		b, err := d.memory.bytes("fill", op.fill.dst, op.fill.n)
		for i := range b {
			b[i] = op.fill.value
		}
		return err
	}
	var err error
	switch op.kind {
	case abi.KindAppend:
		err = d.jobs.append.run(d, op)
	case abi.KindMerge:
		err = d.jobs.merge.run(d, op)
	case abi.KindMaterialise:
		err = d.jobs.materialise.run(d, op)
	case abi.KindSchedule:
		err = d.jobs.schedule.run(d, op)
	default:
		err = d.jobs.attend.run(d, op)
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", op.kind, op.kernels.config.Name, err)
	}
	return nil
}

// marks are channels of marks that have been passed.
var marks = sync.Pool{New: func() any { return make(chan struct{}, 1) }}

// wait returns when everything queued before it is done.
func (d *Device) wait(ctx context.Context) error {
	done := marks.Get().(chan struct{})
	d.mu.RLock()
	if d.closed {
		d.mu.RUnlock()
		return cuda.ErrClosed
	}
	select {
	case d.queue <- operation{done: done}:
	case <-ctx.Done():
		d.mu.RUnlock()
		return ctx.Err()
	}
	d.mu.RUnlock()
	select {
	case <-done:
		marks.Put(done)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Synchronize reports each failure once; the device goes on after one.
func (d *Device) Synchronize(ctx context.Context, s cuda.Stream) error {
	if err := d.wait(ctx); err != nil {
		return fmt.Errorf("synchronize: %w", err)
	}
	var failure error
	if err := d.withStream(s, func(s *stream) { failure, s.failure = s.failure, nil }); err != nil {
		return fmt.Errorf("synchronize: %w", err)
	}
	return failure
}

// Time returns the host's time from when the device is idle until the work is done.
func (d *Device) Time(ctx context.Context, s cuda.Stream, f func() error) (time.Duration, error) {
	if err := d.wait(ctx); err != nil {
		return 0, fmt.Errorf("time: %w", err)
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	if err := d.Synchronize(ctx, s); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}
