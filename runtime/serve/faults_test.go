package serve_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

var errInjected = errors.New("injected")

// faulty is a device and kernels of which one call, counted from 1, fails.
type faulty struct {
	cuda.GraphDevice
	serve.Kernels

	mu    sync.Mutex
	calls int
	fail  int
	name  string         // of the call that failed
	names map[string]int // calls
	held  map[abi.DevicePtr]bool
	// locked is the host allocations that are held.
	locked int
	kept   int // frees that failed: what they were to free is still held
}

func (f *faulty) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.names[name]++
	if f.calls != f.fail {
		return nil
	}
	f.name = name
	return fmt.Errorf("%s: %w", name, errInjected)
}

func (f *faulty) Alloc(n int64) (abi.DevicePtr, error) {
	if err := f.call("Alloc"); err != nil {
		return 0, err
	}
	p, err := f.GraphDevice.Alloc(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[p] = true
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
	if err := f.call("Synchronize"); err != nil {
		return err
	}
	return f.GraphDevice.Synchronize(ctx, s)
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

// faultyCopier is a faulty device that copies on streams.
type faultyCopier struct{ *faulty }

func (f faultyCopier) AllocHost(n int64) ([]byte, error) {
	if err := f.call("AllocHost"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locked++
	return make([]byte, n), nil
}

func (f faultyCopier) FreeHost([]byte) error {
	f.mu.Lock()
	f.locked--
	f.mu.Unlock()
	return f.call("FreeHost")
}

func (f faultyCopier) CopyAsync(_ cuda.Stream, dst, src abi.DevicePtr, b cuda.Blocks) error {
	if err := f.call("CopyAsync"); err != nil {
		return err
	}
	host := make([]byte, b.Size())
	return errors.Join(f.eachBlock(host, src, b, f.GraphDevice.Download), f.eachBlock(host, dst, b, upload(f.GraphDevice)))
}

func (f faultyCopier) CopyToHostAsync(_ cuda.Stream, dst []byte, src abi.DevicePtr, b cuda.Blocks) error {
	if err := f.call("CopyToHostAsync"); err != nil {
		return err
	}
	return f.eachBlock(dst, src, b, f.GraphDevice.Download)
}

func (f faultyCopier) CopyFromHostAsync(_ cuda.Stream, dst abi.DevicePtr, src []byte, b cuda.Blocks) error {
	if err := f.call("CopyFromHostAsync"); err != nil {
		return err
	}
	return f.eachBlock(src, dst, b, upload(f.GraphDevice))
}

func upload(d cuda.Device) func([]byte, abi.DevicePtr) error {
	return func(src []byte, dst abi.DevicePtr) error { return d.Upload(dst, src) }
}

func (f faultyCopier) eachBlock(host []byte, p abi.DevicePtr, b cuda.Blocks, do func([]byte, abi.DevicePtr) error) error {
	for i := range b.Count {
		if err := do(host[int64(i)*b.Bytes:][:b.Bytes], p+abi.DevicePtr(int64(i)*b.Stride)); err != nil {
			return err
		}
	}
	return nil
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
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	f := &faulty{GraphDevice: dev, Kernels: cpuKernels(t, dev, m), fail: fail, names: map[string]int{}, held: map[abi.DevicePtr]bool{}}
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
			t.Fatalf("%s, again after %s had failed: %v", name, f.name, err)
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
	if fail > 0 && failures != 1 && !(failures == 0 && f.name == "AllocHost") {
		t.Errorf("%s failed, and %d operations", f.name, failures)
	}
	if len(f.held) > f.kept || f.locked > 0 {
		t.Errorf("%d device and %d host allocations are left after %s failed", len(f.held), f.locked, f.name)
	}
	return f
}
