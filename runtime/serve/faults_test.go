package serve_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

var errInjected = errors.New("injected")

// faulty is a CPU device and kernels of which some calls fail.
type faulty struct {
	cuda.GraphDevice
	serve.Kernels
	fails func(call int, name string) bool // calls are counted from 1

	mu     sync.Mutex
	calls  int
	failed string         // the call that failed last
	names  map[string]int // calls
	held   map[abi.DevicePtr]int64
	kept   int   // frees that failed: what they were to free is still held
	locked int64 // host memory that is held

	copies  int // from host memory, queued so far
	copying []hostCopy
	marks   map[cuda.Event]int // the copies before each
	misused []string           // page-locked memory that was freed too early
}

// hostCopy is a copy from host memory that nobody has waited for.
type hostCopy struct {
	number int
	src    []byte
}

func newFaulty(dev *cpu.Device, k serve.Kernels, fails func(int, string) bool) *faulty {
	return &faulty{GraphDevice: dev, Kernels: k, fails: fails, names: map[string]int{}, held: map[abi.DevicePtr]int64{}, marks: map[cuda.Event]int{}}
}

func (f *faulty) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.names[name]++
	if !f.fails(f.calls, name) {
		return nil
	}
	f.failed = name
	return fmt.Errorf("%s: %w", name, errInjected)
}

func (f *faulty) Alloc(n int64) (abi.DevicePtr, error) {
	if err := f.call("Alloc"); err != nil {
		return 0, err
	}
	p, err := f.GraphDevice.Alloc(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.held[p] = n
	}
	return p, err
}

func (f *faulty) Free(p abi.DevicePtr) error {
	if err := f.call("Free"); err != nil {
		f.kept++
		return err
	}
	f.mu.Lock()
	delete(f.held, p)
	f.mu.Unlock()
	return f.GraphDevice.Free(p)
}

func (f *faulty) Upload(dst abi.DevicePtr, src []byte) error {
	if err := f.call("Upload"); err != nil {
		return err
	}
	return f.GraphDevice.Upload(dst, src)
}

func (f *faulty) Download(dst []byte, src abi.DevicePtr) error {
	if err := f.call("Download"); err != nil {
		return err
	}
	return f.GraphDevice.Download(dst, src)
}

func (f *faulty) NewStream() (cuda.Stream, error) {
	if err := f.call("NewStream"); err != nil {
		return 0, err
	}
	return f.GraphDevice.NewStream()
}

func (f *faulty) DestroyStream(s cuda.Stream) error {
	if err := f.call("DestroyStream"); err != nil {
		return err
	}
	return f.GraphDevice.DestroyStream(s)
}

func (f *faulty) Synchronize(ctx context.Context, s cuda.Stream) error {
	f.mu.Lock()
	before := f.copies
	f.mu.Unlock()
	err := f.GraphDevice.Synchronize(ctx, s) // as a device does: what fails has ended
	if ctx.Err() == nil {
		f.landed(before)
	}
	return errors.Join(f.call("Synchronize"), err)
}

// landed says that the first n copies are over.
func (f *faulty) landed(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.copying = slices.DeleteFunc(f.copying, func(c hostCopy) bool { return c.number < n })
}

func (f *faulty) Capture(s cuda.Stream, record func() error) (cuda.Graph, error) {
	if err := f.call("Capture"); err != nil {
		return nil, err
	}
	g, err := f.GraphDevice.Capture(s, record)
	if err != nil {
		return nil, err
	}
	return faultyGraph{g, f}, nil
}

type faultyGraph struct {
	cuda.Graph
	*faulty
}

func (g faultyGraph) Launch(s cuda.Stream) error {
	if err := g.call("Graph.Launch"); err != nil {
		return err
	}
	return g.Graph.Launch(s)
}

func (f *faulty) Blocks(abi.Kind) int { return 8 }

func (f *faulty) Append(s cuda.Stream, p abi.AppendParams) error {
	if err := f.call("Append"); err != nil {
		return err
	}
	return f.Kernels.Append(s, p)
}

func (f *faulty) Prefill(s cuda.Stream, p abi.AttendParams) error {
	if err := f.call("Prefill"); err != nil {
		return err
	}
	return f.Kernels.Prefill(s, p)
}

func (f *faulty) Extend(s cuda.Stream, p abi.AttendParams) error {
	if err := f.call("Extend"); err != nil {
		return err
	}
	return f.Kernels.Extend(s, p)
}

func (f *faulty) SharedDecode(s cuda.Stream, p abi.AttendParams) error {
	if err := f.call("SharedDecode"); err != nil {
		return err
	}
	return f.Kernels.(manyBlocks).SharedDecode(s, p)
}

func (f *faulty) Decode(s cuda.Stream, p abi.AttendParams) error {
	if err := f.call("Decode"); err != nil {
		return err
	}
	return f.Kernels.Decode(s, p)
}

func (f *faulty) Merge(s cuda.Stream, p abi.MergeParams) error {
	if err := f.call("Merge"); err != nil {
		return err
	}
	return f.Kernels.Merge(s, p)
}

// faultyCopier is a faulty device that copies on streams and has events.
type faultyCopier struct{ *faulty }

func (f faultyCopier) copier() cuda.Copier { return f.GraphDevice.(cuda.Copier) }

func (f faultyCopier) AllocHost(n int64) ([]byte, error) {
	if err := f.call("AllocHost"); err != nil {
		return nil, err
	}
	b, err := f.copier().AllocHost(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locked += int64(len(b))
	return b, err
}

func (f faultyCopier) FreeHost(b []byte) error {
	f.mu.Lock()
	f.locked -= int64(len(b))
	for _, c := range f.copying {
		if begin, at := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&c.src[0])); at >= begin && at < begin+uintptr(len(b)) {
			f.misused = append(f.misused, fmt.Sprintf("%d bytes were freed while they were copied", len(c.src)))
		}
	}
	f.mu.Unlock()
	return errors.Join(f.call("FreeHost"), f.copier().FreeHost(b))
}

func (f faultyCopier) CopyAsync(s cuda.Stream, dst, src abi.DevicePtr, b cuda.Blocks) error {
	if err := f.call("CopyAsync"); err != nil {
		return err
	}
	return f.copier().CopyAsync(s, dst, src, b)
}

func (f faultyCopier) CopyToHostAsync(s cuda.Stream, dst []byte, src abi.DevicePtr, b cuda.Blocks) error {
	if err := f.call("CopyToHostAsync"); err != nil {
		return err
	}
	return f.copier().CopyToHostAsync(s, dst, src, b)
}

func (f faultyCopier) CopyFromHostAsync(s cuda.Stream, dst abi.DevicePtr, src []byte, b cuda.Blocks) error {
	if err := f.call("CopyFromHostAsync"); err != nil {
		return err
	}
	f.mu.Lock()
	f.copying = append(f.copying, hostCopy{f.copies, src})
	f.copies++
	f.mu.Unlock()
	return f.copier().CopyFromHostAsync(s, dst, src, b)
}

func (f faultyCopier) events() cuda.EventDevice { return f.GraphDevice.(cuda.EventDevice) }

func (f faultyCopier) NewEvent() (cuda.Event, error) {
	if err := f.call("NewEvent"); err != nil {
		return 0, err
	}
	return f.events().NewEvent()
}

func (f faultyCopier) DestroyEvent(e cuda.Event) error {
	return errors.Join(f.call("DestroyEvent"), f.events().DestroyEvent(e))
}

func (f faultyCopier) Record(e cuda.Event, s cuda.Stream) error {
	if err := f.call("Record"); err != nil {
		return err
	}
	f.mu.Lock()
	f.marks[e] = f.copies
	f.mu.Unlock()
	return f.events().Record(e, s)
}

func (f faultyCopier) Follow(s, after cuda.Stream, e cuda.Event) error {
	if err := f.call("Follow"); err != nil {
		return err
	}
	return f.GraphDevice.(cuda.StreamFollower).Follow(s, after, e)
}

func (f faultyCopier) WaitEvent(ctx context.Context, e cuda.Event) error {
	f.mu.Lock()
	before := f.marks[e]
	f.mu.Unlock()
	err := f.events().WaitEvent(ctx, e)
	if ctx.Err() == nil {
		f.landed(before)
	}
	return errors.Join(f.call("WaitEvent"), err)
}

// Whichever call of the device fails, the operation at hand says so, nothing
// has changed, and the same operation then works.
func TestFaults(t *testing.T) {
	for name, copies := range map[string]bool{"copier": true, "no copier": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := scenario(t, copies, 0)
			t.Logf("%d calls: %v", f.calls, f.names)
			for _, name := range []string{"Append", "Prefill", "Extend", "Decode", "Merge", "Graph.Launch", "Capture", "Synchronize", "Alloc", "Free"} {
				if f.names[name] == 0 {
					t.Errorf("no call of %s", name)
				}
			}
			for n := 1; n <= f.calls; n++ {
				scenario(t, copies, n)
				if t.Failed() {
					t.Fatalf("with call %d failing", n)
				}
			}
		})
	}
}

// scenario does a little of everything, with call number fail failing.
func scenario(t *testing.T, copies bool, fail int) *faulty {
	t.Helper()
	ctx := t.Context()
	m := toy.Small()
	m.Layers, m.KVHeads, m.PageSize = 1, 1, 32 // fewer copies
	m.Sharing = "bitwise"                      // documents are short: fastest would share none
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	f := newFaulty(dev, cpuKernels(t, dev, m), func(call int, _ string) bool { return call == fail })
	var seam cuda.Device = f
	if copies {
		seam = faultyCopier{f}
	}
	b := toy.New(dev, nil, m) // the model's own calls don't fail
	b.Trusting = true
	var sequences []*serve.Sequence

	state := func() string {
		if b.Engine == nil {
			return fmt.Sprint(len(f.held))
		}
		s := b.Engine.Cache().Stats()
		tokens := []int{s.Chunks, s.Pinned, s.Sequences}
		for _, q := range sequences {
			tokens = append(tokens, q.Tokens(), q.Next())
		}
		return fmt.Sprint(tokens)
	}
	failures := 0
	do := func(name string, operation func() error) {
		t.Helper()
		before := state()
		err := operation()
		if err == nil {
			return
		}
		failures++
		if !errors.Is(err, errInjected) {
			t.Fatalf("%s: %v", name, err)
		}
		if after := state(); after != before {
			t.Errorf("%s: %v: the state is %s, it was %s", name, err, after, before)
		}
		if err := operation(); err != nil {
			t.Fatalf("%s, again after %s had failed: %v", name, f.failed, err)
		}
	}

	do("new", func() (err error) {
		b.Engine, err = serve.New(seam, f, m, serve.Options{Pages: 200, HostBytes: 1 << 20})
		return err
	})
	docs := [][]int32{toy.Document(1, 270), toy.Document(2, 9)}
	var chunks []*kvcache.Chunk
	for _, d := range docs {
		do("register", func() error {
			c, err := b.Engine.Register(ctx, d, b.Encode(d))
			if err == nil {
				chunks = append(chunks, c)
			}
			return err
		})
	}
	var requests []*toy.Request
	open := func() error {
		s, err := b.Engine.Open(kvcache.Pack(chunks...), kvcache.Packed)
		if err == nil {
			sequences = append(sequences, s)
			requests = append(requests, &toy.Request{Segments: []toy.Placed{{Tokens: docs[0], Offset: 0}, {Tokens: docs[1], Offset: 270}}, Offset: 279})
		}
		return err
	}
	do("open", open)
	do("open", open)
	step := func(run func(context.Context, []serve.Entry, []int32) ([][]byte, error), counts ...int) {
		t.Helper()
		var batch []serve.Entry
		var tokens []int32
		for i, n := range counts {
			batch = append(batch, serve.Entry{Sequence: sequences[i], Tokens: n})
			tokens = append(tokens, toy.Document(uint64(n), n)...)
		}
		var outs [][]byte
		do("step", func() (err error) {
			outs, err = run(ctx, batch, tokens)
			return err
		})
		row := 0
		for i, n := range counts {
			requests[i].Own = append(requests[i].Own, tokens[row:row+n]...)
			if fail == 0 || failures > 0 { // the first scenario has no failure: it is looked at whole
				if err := b.Compare(requests[i], n, outs, row); err != nil {
					t.Error(err)
				}
			}
			row += n
		}
	}
	step(b.Step, 18, 1)
	do("fork", func() error {
		s, err := sequences[0].Fork()
		if err == nil {
			sequences = append(sequences, s)
			fork := *requests[0]
			fork.Own = append([]int32(nil), fork.Own...)
			requests = append(requests, &fork)
		}
		return err
	})
	step(b.Step, 1, 2, 3) // a page is copied
	var g *toy.Recording
	do("capture", func() (err error) {
		g, err = b.Record(ctx, serve.GraphSize{Tokens: 3})
		return err
	})
	step(g.Step, 1, 1, 1)
	step(g.Step, 2, 1)
	do("close the graph", func() error { return g.Close(ctx) })
	g.Free()
	for _, s := range sequences {
		do("close", s.Close)
	}
	sequences = nil
	for _, c := range chunks {
		c.Release()
		do("evict", func() error { return b.Engine.Cache().Evict(c.ID()) })
	}
	chunks, requests = nil, nil
	for _, d := range docs {
		do("register again", func() error {
			c, err := b.Engine.Register(ctx, d, b.Encode(d))
			if err == nil {
				chunks = append(chunks, c)
			}
			return err
		})
	}
	do("open again", open)
	step(b.Step, 5)
	if err := b.Engine.Close(); err != nil {
		failures++
		if !errors.Is(err, errInjected) {
			t.Errorf("close: %v", err)
		}
	}
	// The host tier does with the memory that it gets.
	if fail > 0 && failures != 1 && !(failures == 0 && f.failed == "AllocHost") {
		t.Errorf("%s failed, and %d operations", f.failed, failures)
	}
	if len(f.misused) > 0 {
		t.Errorf("after %s failed: %q", f.failed, f.misused)
	}
	if len(f.held) > f.kept || f.locked > 0 {
		t.Errorf("%d device allocations and %d bytes of host memory are left after %s failed", len(f.held), f.locked, f.failed)
	}
	return f
}
