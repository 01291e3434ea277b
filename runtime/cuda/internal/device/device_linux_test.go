package device

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/internal/results"
)

// everything uses each method of a device once and, like a careful caller,
// gives back what it got whatever fails.
func everything(l *Library) (err error) {
	ctx := context.Background()
	d, err := open(ctx, l, 1)
	if err != nil {
		return err
	}
	giveBack := func(f func() error) { err = errors.Join(err, f()) }
	defer giveBack(d.Close)
	if _, _, err := d.Memory(); err != nil {
		return err
	}
	p, err := d.Alloc(64)
	if err != nil {
		return err
	}
	defer giveBack(func() error { return d.Free(p) })
	host, err := d.AllocHost(16)
	if err != nil {
		return err
	}
	defer giveBack(func() error { return d.FreeHost(host) })
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	defer giveBack(func() error { return d.DestroyStream(s) })
	e, err := d.NewEvent()
	if err != nil {
		return err
	}
	defer giveBack(func() error { return d.DestroyEvent(e) })
	m, err := d.Load(cuda.Image{Name: "add", Cubin: []byte("\x7fELF...")})
	if err != nil {
		return err
	}
	defer giveBack(m.Unload)
	k, err := m.Kernel("add")
	if err != nil {
		return err
	}
	config := cuda.LaunchConfig{GridX: 3, GridY: 2, GridZ: 1, Threads: 128, SharedBytes: 100 << 10}
	add := func() error { return k.Launch(s, config, make([]byte, 8)) }
	addEarly := func() error {
		early := config
		early.Early = true
		return k.Launch(s, early, make([]byte, 8))
	}
	steps := []func() error{
		func() error { _, err := d.EncodeTensorMap(boxes); return err },
		func() error { return d.Upload(p, make([]byte, 64)) },
		func() error { return d.Fill(s, p, 7, 64) },
		func() error { return d.CopyAsync(s, p, p+8, cuda.Blocks{Bytes: 4, Stride: 16, Count: 4}) },
		func() error { return d.CopyToHostAsync(s, host, p, cuda.Blocks{Bytes: 8, Stride: 32, Count: 2}) },
		func() error { return d.CopyFromHostAsync(s, p, host, cuda.Blocks{Bytes: 8, Stride: 41, Count: 2}) },
		add,
		addEarly,
		func() error { return d.Record(e, s) },
		func() error { return d.WaitEvent(ctx, e) },
		func() error { return d.Follow(0, s, e) },
		func() error { return d.Synchronize(ctx, s) },
		func() error { _, err := d.Time(ctx, s, add); return err },
		func() error { return d.Download(make([]byte, 64), p) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	g, err := d.Capture(s, add)
	if err != nil {
		return err
	}
	defer giveBack(g.Destroy)
	return g.Launch(s)
}

func TestEverything(t *testing.T) {
	f := newFake()
	if err := everything(f.library()); err != nil {
		t.Fatal(err)
	}
	if len(f.leaks()) > 0 || len(f.misuse) > 0 {
		t.Errorf("leaks %q, misuse %q", f.leaks(), f.misuse)
	}
	fields := reflect.TypeFor[Library]()
	for i := range fields.NumField() {
		symbol := fields.Field(i).Tag.Get("symbol")
		if f.calls[symbol] == 0 && !strings.HasPrefix(symbol, "cuGetError") {
			t.Errorf("%s is bound but not called", symbol)
		}
	}
}

var launchFailures = []int32{700, 701, 702, 710, 714, 715, 716, 717, 718, 719, 720}

// TestEveryCallFails makes each single call of the run fail with every code.
func TestEveryCallFails(t *testing.T) {
	clean := newFake()
	if err := everything(clean.library()); err != nil {
		t.Fatal(err)
	}
	for symbol, calls := range clean.calls {
		call := strings.TrimSuffix(symbol, "_v2")
		for nth := 1; nth <= calls; nth++ {
			for _, c := range results.Codes {
				if c == 0 || c == int32(NotReady) && strings.HasSuffix(symbol, "Query") {
					continue
				}
				f := newFake()
				f.inject = func(s string, n int) Code {
					if s == symbol && n == nth {
						return Code(c)
					}
					return Success
				}
				err := everything(f.library())
				var e *cuda.Error
				if !errors.As(err, &e) || e.Call != call || e.Code != int(c) || !strings.Contains(err.Error(), call+": ") {
					t.Errorf("%s call %d fails with %d: error %v", symbol, nth, c, err)
				}
				if errors.Is(err, cuda.ErrOutOfMemory) != (c == 2) || errors.Is(err, cuda.ErrLaunch) != slices.Contains(launchFailures, c) {
					t.Errorf("%s fails with %d: wrong kind of error %v", symbol, c, err)
				}
				leaks := 0
				if symbol == "cuCtxSetCurrent" {
					leaks = 1 // what could not be given back because of it
				}
				if len(f.leaks()) > leaks || len(f.misuse) > 0 {
					t.Errorf("%s call %d fails with %d: leaks %q, misuse %q", symbol, nth, c, f.leaks(), f.misuse)
				}
			}
		}
	}
}

func mustOpen(t *testing.T, f *fake) *device {
	t.Helper()
	d, err := open(context.Background(), f.library(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.closed {
			return
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestInfo(t *testing.T) {
	got := mustOpen(t, newFake()).Info()
	got.Driver, _, _ = strings.Cut(got.Driver, ",") // this machine's own release, if it has one
	want := cuda.Info{Name: "Fake H200", Major: 9, Multiprocessors: 132, SharedPerBlock: 227 << 10,
		L2Bytes: 50 << 20, MemoryBytes: 1 << 30, Driver: "CUDA 13.1"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDriverText(t *testing.T) {
	for release, want := range map[string]string{"": "CUDA 13.1", "580.95.05\n": "CUDA 13.1, 580.95.05"} {
		if got := driverText(13010, release); got != want {
			t.Errorf("%q: %q, want %q", release, got, want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	tests := []struct {
		name    string
		ctx     context.Context
		ordinal int
		initial Code
		is      error
		text    string
	}{
		{"ordinal too large", context.Background(), 2, 0, cuda.ErrNoDevice, "the driver shows 2 to this process"},
		{"negative ordinal", context.Background(), -1, 0, cuda.ErrNoDevice, "the driver shows 2 to this process"},
		{"no GPU", context.Background(), 0, 100, cuda.ErrNoDevice, "cuInit: "},
		{"unknown code", context.Background(), 0, 4242, nil, "cuInit: unknown CUresult (4242): described"},
		{"cancelled", cancelled, 0, 0, context.Canceled, "context canceled"},
	}
	for _, test := range tests {
		f := newFake()
		f.inject = func(symbol string, _ int) Code {
			if symbol == "cuInit" {
				return test.initial
			}
			return Success
		}
		_, err := open(test.ctx, f.library(), test.ordinal)
		if err == nil || !strings.Contains(err.Error(), test.text) || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: error %v", test.name, err)
		}
	}
}

func TestMemory(t *testing.T) {
	d := mustOpen(t, newFake())
	p, err := d.Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	err = errors.Join(d.Upload(p, []byte{1, 2, 3, 4}), d.Fill(0, p, 9, 2), d.Download(got, p), d.Free(p))
	if want := []byte{9, 9, 3, 4}; err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	err = errors.Join(d.Upload(0, nil), d.Download(nil, 0), d.Fill(0, 0, 1, 0))
	if err != nil {
		t.Errorf("nothing to copy: %v", err)
	}
	if _, err := d.Alloc(0); err == nil {
		t.Error("0 bytes were allocated")
	}
	if _, err = d.Alloc(10 << 40); !errors.Is(err, cuda.ErrOutOfMemory) ||
		!strings.Contains(err.Error(), "wanted 10995116277760 bytes, 536870912 of 1073741824 are free") {
		t.Errorf("10 TB: error %v", err)
	}
}

func TestCopies(t *testing.T) {
	f := newFake()
	d := mustOpen(t, f)
	p, err := d.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]byte, 100)
	for i := range all {
		all[i] = byte(i)
	}
	host, err := d.AllocHost(6)
	if err != nil {
		t.Fatal(err)
	}
	for _, stride := range []int64{3, 10, 40, 41, 48} {
		b := cuda.Blocks{Bytes: 3, Stride: stride, Count: 2}
		back := make([]byte, 100)
		err = errors.Join(d.Upload(p, all), d.CopyToHostAsync(5, host, p+1, b), d.CopyFromHostAsync(5, p+20, host, b),
			d.CopyAsync(5, p+30, p+5, b), d.Download(back, p))
		want := bytes.Clone(all)
		for i := range stride + 3 {
			if in := i % stride; i/stride < 2 && in < 3 {
				want[20+i] = byte(1 + i)
			}
		}
		for i := range 2 {
			from := 5 + i*int(stride)
			copy(want[30+i*int(stride):][:3], bytes.Clone(want[from:from+3]))
		}
		if err != nil || !bytes.Equal(back, want) {
			t.Errorf("stride %d: %v, got %v, want %v", stride, err, back, want)
		}
	}
	good := cuda.Blocks{Bytes: 3, Stride: 3, Count: 2}
	for _, test := range []struct {
		call func() error
		text string
	}{
		{func() error { return d.CopyToHostAsync(0, host[:5], p, good) }, "cuMemcpy2DAsync: 5 bytes of host memory for {Bytes:3 Stride:3 Count:2}"},
		{func() error { return d.CopyFromHostAsync(0, p, host[:5], good) }, "5 bytes of host memory"},
		{func() error { return d.CopyAsync(0, p, p, cuda.Blocks{Bytes: 3, Stride: 2, Count: 2}) }, "negative or overlapping"},
		{func() error { return d.CopyAsync(0, p, p, cuda.Blocks{Bytes: 3, Stride: 3, Count: -2}) }, "negative or overlapping"},
		{func() error { _, err := d.AllocHost(0); return err }, "must be positive"},
		{func() error { _, err := d.AllocHost(10 << 40); return err }, "cuMemHostAlloc: "},
	} {
		if err := test.call(); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("error %v, want %q in it", err, test.text)
		}
	}
	if err := errors.Join(d.CopyAsync(0, p, p, cuda.Blocks{}), d.FreeHost(host), d.Free(p)); err != nil {
		t.Error(err)
	}
	if len(f.misuse) > 0 || len(f.leaks()) != 1 { // the context
		t.Errorf("leaks %q, misuse %q", f.leaks(), f.misuse)
	}
}

var boxes = cuda.TensorMap{
	Base: 1 << 12, Dims: [5]int64{64, 8, 16, 2, 1000}, Strides: [4]int64{2048, 128, 16384, 32768}, Box: [5]int{64, 8, 16, 2, 4},
}

func TestTensorMap(t *testing.T) {
	f := newFake()
	d := mustOpen(t, f)
	got, err := d.EncodeTensorMap(boxes)
	if err != nil || got[0] != 1 || got[127] != 2 {
		t.Errorf("map %v, %v", got, err)
	}
	m := f.maps[0]
	if uintptr(unsafe.Pointer(m.Map))%64 != 0 {
		t.Errorf("map at %p", m.Map)
	}
	m.Map = nil
	want := TensorMap{DataType: 1, Rank: 5, Base: 1 << 12, Dims: [5]uint64{64, 8, 16, 2, 1000}, Strides: [4]uint64{2048, 128, 16384, 32768},
		Box: [5]uint32{64, 8, 16, 2, 4}, ElementStrides: [5]uint32{1, 1, 1, 1, 1}, Swizzle: 3, L2Promotion: 2}
	if m != want {
		t.Errorf("asked for %+v, want %+v", m, want)
	}
	for _, box := range []int{0, -1, 257} {
		bad := boxes
		bad.Box[4] = box
		if _, err := d.EncodeTensorMap(bad); err == nil || !strings.Contains(err.Error(), "cuTensorMapEncodeTiled: tensor map: the box has "+strconv.Itoa(box)+" elements of dimension 4; ") {
			t.Errorf("box of %d: error %v", box, err)
		}
	}
	d.lib.TensorMapEncode = nil
	if _, err := d.EncodeTensorMap(boxes); err == nil || !strings.Contains(err.Error(), "CUDA 12.0") {
		t.Errorf("old driver: error %v", err)
	}
}

func TestLoadErrors(t *testing.T) {
	f := newFake()
	f.JITLog = "ptxas fatal: line 3"
	d := mustOpen(t, f)
	_, err := d.Load(cuda.Image{Name: "add", Cubin: []byte("x")})
	if err == nil || !strings.Contains(err.Error(), "add on Fake H200: cuModuleLoadDataEx: ") ||
		!strings.HasSuffix(err.Error(), "\nptxas fatal: line 3") {
		t.Errorf("error %v", err)
	}
	if _, err := d.Load(cuda.Image{Name: "add", Source: []byte("x")}); err == nil {
		t.Error("an image without machine code was loaded")
	}
}

func TestWaitsGiveUp(t *testing.T) {
	f := newFake()
	d := mustOpen(t, f)
	f.queries[5] = 1 << 40
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := d.Synchronize(ctx, 5); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if err := d.WaitEvent(ctx, 5); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestTime(t *testing.T) {
	f := newFake()
	d := mustOpen(t, f)
	got, err := d.Time(context.Background(), 0, func() error { return nil })
	if err != nil || got != 1500*time.Microsecond {
		t.Errorf("got %v, %v", got, err)
	}
	failed := errors.New("failed")
	if _, err := d.Time(context.Background(), 0, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if leaks := f.leaks(); len(leaks) != 1 { // the context
		t.Errorf("leaks %q", leaks)
	}
}

func TestCapture(t *testing.T) {
	f := newFake()
	d := mustOpen(t, f)
	if _, err := d.Capture(0, func() error { return nil }); err == nil {
		t.Error("the default stream was captured")
	}
	failed := errors.New("failed")
	if _, err := d.Capture(5, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		_, _ = d.Capture(5, func() error { panic("in f") })
	}()
	if leaks := f.leaks(); len(leaks) != 1 || len(f.recorded) > 0 || len(f.misuse) > 0 { // the context
		t.Errorf("leaks %q, captures under way %v, misuse %q", leaks, f.recorded, f.misuse)
	}
}

func TestClosed(t *testing.T) {
	d := mustOpen(t, newFake())
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); !errors.Is(err, cuda.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := d.Alloc(1); !errors.Is(err, cuda.ErrClosed) {
		t.Errorf("Alloc after Close: %v", err)
	}
}

// TestConcurrentUse uses two devices from many goroutines: each call must find
// its own device's context on its thread.
func TestConcurrentUse(t *testing.T) {
	f := newFake()
	l := f.library()
	var devices [2]*device
	for i := range devices {
		d, err := open(context.Background(), l, i)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		devices[i] = d
	}
	var group sync.WaitGroup
	for i := range 16 {
		d := devices[i%2]
		group.Go(func() {
			for range 100 {
				p, err := d.Alloc(16)
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(d.Fill(0, p, 1, 16), d.Free(p)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if len(f.misuse) > 0 {
		t.Errorf("misuse %q", f.misuse)
	}
}
