package cpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Options change how a device is opened. The zero value is usual.
type Options struct {
	Workers int // goroutines that compute; 0: GOMAXPROCS
	// MemoryBytes is the most that can be allocated; 0, and on Linux whatever is more: the
	// memory of the machine or its container, elsewhere 64 GiB. It guards against wrong sizes,
	// which would end the process: memory is its own and is taken as it is first written.
	MemoryBytes int64
}

// otherMemory is taken for the memory of a machine that doesn't tell.
const otherMemory = 64 << 30

// Device is a [cuda.GraphDevice], a [cuda.Copier], a [cuda.StreamFollower] and a
// [cuda.LaneDevice] in host memory. One queue takes the work of all streams and the workers share out each
// launch, so work is done in the order of the calls. An address means something to its
// device alone.
type Device struct {
	info   cuda.Info
	memory memory
	most   int64 // bytes of the machine's memory
	pool   *pool
	jobs   jobs
	queue  chan operation
	ended  chan struct{} // closed when the queue is closed and empty

	mu     sync.RWMutex // held for reading while an operation is queued
	closed bool

	streamMu sync.Mutex
	streams  []stream // the default stream first
	last     cuda.Stream
	events   map[cuda.Event]chan struct{} // closed when the mark is passed; nil: never recorded
	newest   cuda.Event
}

// stream is what a device knows of one.
type stream struct {
	id        cuda.Stream
	failure   error  // the first that Synchronize has not reported
	recording *graph // nil: not captured
	queued    int    // operations that are not done, and lanes
	lane      *lane  // nil: it is none

	// Of the capture: how many operations it recorded, and how many of each other stream's
	// it is behind.
	recorded int
	behind   map[cuda.Stream]int
}

// lane is what a stream is that is a lane.
type lane struct {
	of    cuda.Stream
	ended bool // it goes when nothing is queued on it
	keep  bool // what failed is then the other stream's
}

var (
	_ cuda.GraphDevice    = (*Device)(nil)
	_ cuda.Copier         = (*Device)(nil)
	_ cuda.StreamFollower = (*Device)(nil)
	_ cuda.LaneDevice     = (*Device)(nil)
)

// Open starts a device. It keeps goroutines until it is closed.
func Open(o Options) *Device {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	most := min(systemMemory(), math.MaxInt) // the largest slice
	if o.MemoryBytes <= 0 || runtime.GOOS == "linux" && o.MemoryBytes > most {
		o.MemoryBytes = most
	}
	d := &Device{
		info: cuda.Info{
			Name:            fmt.Sprintf("CPU, %s, %d workers", runtime.GOARCH, o.Workers),
			Multiprocessors: o.Workers, MemoryBytes: o.MemoryBytes,
		},
		memory:  memory{next: firstAddress, limit: o.MemoryBytes},
		most:    most,
		pool:    newPool(o.Workers),
		queue:   make(chan operation, 64),
		ended:   make(chan struct{}),
		streams: []stream{{}},
		events:  map[cuda.Event]chan struct{}{},
	}
	go d.serve()
	return d
}

func (d *Device) Info() cuda.Info { return d.info }

func (d *Device) Alloc(n int64) (abi.DevicePtr, error) {
	if err := d.open("alloc"); err != nil {
		return 0, err
	}
	return d.memory.alloc(n)
}

// Free waits for the work already launched.
func (d *Device) Free(p abi.DevicePtr) error {
	if err := d.wait(context.Background()); err != nil {
		return fmt.Errorf("free: %w", err)
	}
	return d.memory.free(p)
}

// Load refuses: the device's kernels are Go.
func (d *Device) Load(image cuda.Image) (cuda.Module, error) {
	return nil, fmt.Errorf("load %s: the CPU backend runs no GPU code: launch cpu.Kernels", image.Name)
}

func (d *Device) NewStream() (cuda.Stream, error) {
	if err := d.open("new stream"); err != nil {
		return 0, err
	}
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	d.last++
	d.streams = append(d.streams, stream{id: d.last})
	return d.last, nil
}

// DestroyStream lets the stream's work end and reports what failed and was not
// reported yet.
func (d *Device) DestroyStream(s cuda.Stream) error {
	if s == 0 {
		return errors.New("destroy stream: the default stream stays")
	}
	err := d.Synchronize(context.Background(), s)
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	d.remove(s)
	return err
}

// NewLane makes a stream: the device does all work in the order of the calls.
func (d *Device) NewLane(s cuda.Stream) (cuda.Stream, error) {
	if err := d.open("new lane"); err != nil {
		return 0, err
	}
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	of := d.find(s)
	if of == nil {
		return 0, fmt.Errorf("new lane: %w", unknownStream(s))
	}
	of.queued++ // if it is a lane too, it stays until this one goes
	d.last++
	d.streams = append(d.streams, stream{id: d.last, lane: &lane{of: s}})
	return d.last, nil
}

func (d *Device) EndLane(s cuda.Stream, keep bool) {
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	if l := d.find(s); l != nil && l.lane != nil {
		l.lane.ended, l.lane.keep = true, keep
		d.leave(l)
	}
}

// leave removes a lane that has ended, once nothing is queued on it.
func (d *Device) leave(s *stream) {
	if s.lane == nil || !s.lane.ended || s.queued > 0 {
		return
	}
	of, failure := s.lane.of, s.failure
	if !s.lane.keep {
		failure = nil
	}
	d.remove(s.id)
	if parent := d.find(of); parent != nil {
		d.done(parent, failure)
	}
}

// done says that something that was queued on a stream is over, or has failed.
func (d *Device) done(s *stream, failure error) {
	s.queued--
	if s.failure == nil {
		s.failure = failure
	}
	d.leave(s)
}

func (d *Device) remove(s cuda.Stream) {
	d.streams = slices.DeleteFunc(d.streams, func(x stream) bool { return x.id == s })
}

// Close waits for the work already launched. Memory goes with the device.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fmt.Errorf("close: %w", cuda.ErrClosed)
	}
	d.closed = true
	d.mu.Unlock()
	close(d.queue)
	<-d.ended
	d.pool.close()
	return nil
}

func (d *Device) open(call string) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return fmt.Errorf("%s: %w", call, cuda.ErrClosed)
	}
	return nil
}

// withStream calls f on a stream.
func (d *Device) withStream(s cuda.Stream, f func(*stream)) error {
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	found := d.find(s)
	if found == nil {
		return unknownStream(s)
	}
	f(found)
	return nil
}

func unknownStream(s cuda.Stream) error {
	return fmt.Errorf("stream %d was not made by this device, or was destroyed", s)
}

// find is the stream, or nil, for whoever holds streamMu.
func (d *Device) find(s cuda.Stream) *stream {
	if i := slices.IndexFunc(d.streams, func(x stream) bool { return x.id == s }); i >= 0 {
		return &d.streams[i]
	}
	return nil
}

// failure is a failure of any stream but a lane that was not reported yet.
func (d *Device) failure() error {
	d.streamMu.Lock()
	defer d.streamMu.Unlock()
	for _, s := range d.streams {
		if s.failure != nil && s.lane == nil {
			return s.failure
		}
	}
	return nil
}
