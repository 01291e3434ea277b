package cpu

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

func open(t testing.TB, o Options) *Device {
	t.Helper()
	d := Open(o)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func alloc(t testing.TB, d *Device, n int64) abi.DevicePtr {
	t.Helper()
	p, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// wantError holds err to a part of its text.
func wantError(t testing.TB, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want one with %q", what, err, want)
	}
}

func TestMemory(t *testing.T) {
	d := open(t, Options{MemoryBytes: 1000})
	p := alloc(t, d, 100)
	q := alloc(t, d, 900)
	if p%alignment != 0 || q%alignment != 0 {
		t.Errorf("%#x, %#x: not aligned", p, q)
	}
	if _, err := d.Alloc(1); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("full: %v", err)
	}
	if err := d.Free(q); err != nil {
		t.Error(err)
	}
	q = alloc(t, d, 900)
	if err := errors.Join(d.Fill(0, p, 7, 100), d.Upload(p+90, []byte("0123456789"))); err != nil {
		t.Error(err)
	}
	got := make([]byte, 20)
	if err := d.Download(got, p+80); err != nil || string(got) != strings.Repeat("\a", 10)+"0123456789" {
		t.Errorf("%q, %v", got, err)
	}

	_, err := d.Alloc(0)
	wantError(t, "no bytes", err, "0 bytes: must be positive")
	wantError(t, "past the end", d.Upload(p+90, make([]byte, 11)), "11 bytes at offset 0 are outside its allocation, which ends at offset 10")
	wantError(t, "at the end", d.Download(got, p+100), "is not in any allocation")
	wantError(t, "null", d.Download(got, 0), "download is null and is needed")
	wantError(t, "below", d.Download(got, 12), "is not in any allocation")
	wantError(t, "inside", d.Free(p+1), "is not what Alloc returned")
	if err := errors.Join(d.Free(p), d.Free(q)); err != nil {
		t.Error(err)
	}
	wantError(t, "twice", d.Free(p), "was freed already")
	wantError(t, "freed", d.Download(got, p), "is not in any allocation")
}

func TestStreams(t *testing.T) {
	d := open(t, Options{})
	p := alloc(t, d, 10)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []byte{1, 2, 3} { // in order, whatever the stream
		if err := d.Fill(s*cuda.Stream(value%2), p, value, 10); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 10)
	if err := d.Download(got, p); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{3}, 10)) {
		t.Errorf("%v, %v", got, err)
	}

	// A failure is its stream's, and is reported once.
	if err := d.Fill(s, p, 9, 11); err != nil {
		t.Fatal(err)
	}
	wantError(t, "download after a failure", d.Download(got, p), "fill at ")
	if err := d.Synchronize(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if err := d.Synchronize(t.Context(), s); !errors.Is(err, cuda.ErrLaunch) {
		t.Error(err)
	}
	if err := errors.Join(d.Synchronize(t.Context(), s), d.Download(got, p)); err != nil {
		t.Error(err)
	}

	wantError(t, "default stream", d.DestroyStream(0), "the default stream stays")
	if err := d.DestroyStream(s); err != nil {
		t.Error(err)
	}
	wantError(t, "destroyed", d.Fill(s, p, 1, 1), "was destroyed")
	wantError(t, "destroyed", d.Synchronize(t.Context(), s), "was destroyed")
	_, err = d.Load(cuda.Image{Name: "decode"})
	wantError(t, "load", err, "load decode: the CPU backend runs no GPU code")
}

func TestCopies(t *testing.T) {
	d := open(t, Options{})
	p, q := alloc(t, d, 12), alloc(t, d, 12)
	host, err := d.AllocHost(6)
	if err != nil {
		t.Fatal(err)
	}
	b := cuda.Blocks{Bytes: 2, Stride: 5, Count: 3}
	got := make([]byte, 12)
	err = errors.Join(
		d.Upload(p, []byte("ab---cd---ef")), d.Fill(0, q, '.', 12),
		d.CopyAsync(0, q, p, b), d.CopyToHostAsync(0, host, q, b), d.CopyFromHostAsync(0, p+2, []byte("ABCDEF")[:4], cuda.Blocks{Bytes: 2, Stride: 5, Count: 2}),
		d.CopyAsync(0, q, p, cuda.Blocks{}), d.Upload(p, nil), d.Fill(0, 0, 1, 0),
		d.Download(got, q),
	)
	if err != nil || string(got) != "ab...cd...ef" || string(host) != "abcdef" {
		t.Errorf("%q, %q, %v", got, host, err)
	}
	if err := d.Download(got, p); err != nil || string(got) != "abAB-cdCD-ef" {
		t.Errorf("%q, %v", got, err)
	}
	if err := d.FreeHost(host); err != nil {
		t.Error(err)
	}
	_, err = d.AllocHost(0)
	wantError(t, "no bytes", err, "0 bytes: must be positive")
	wantError(t, "short host memory", d.CopyToHostAsync(0, host[:5], p, b), "copy: 5 bytes of host memory for {Bytes:2 Stride:5 Count:3}")
	wantError(t, "long host memory", d.CopyFromHostAsync(0, p, got, b), "copy: 12 bytes of host memory")
	wantError(t, "overlap", d.CopyAsync(0, q, p, cuda.Blocks{Bytes: 2, Stride: 1, Count: 2}), "negative or overlapping")
	b.Count = 4
	wantError(t, "past the end", errors.Join(d.CopyAsync(0, q, p, b), d.Synchronize(t.Context(), 0)), "copy: block 3: destination: ")
}

func TestWaitEndsWithItsContext(t *testing.T) {
	d := open(t, Options{Workers: 1})
	s := newStep(t, d, smolLM(), abi.KindPrefill, 3, 300, 300)
	// The device stops at a mark that nobody has taken yet.
	stopped := make(chan struct{})
	d.queue <- operation{done: stopped}
	if err := s.kernels.Prefill(0, s.attend); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := d.Synchronize(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	<-stopped
	if err := d.Synchronize(t.Context(), 0); err != nil { // the work went on
		t.Error(err)
	}
}

func TestTime(t *testing.T) {
	d := open(t, Options{})
	took, err := d.Time(t.Context(), 0, func() error { time.Sleep(time.Millisecond); return nil })
	if err != nil || took < time.Millisecond {
		t.Errorf("%v, %v", took, err)
	}
	_, err = d.Time(t.Context(), 0, func() error { return errors.New("no kernel") })
	wantError(t, "time", err, "no kernel")
}

func TestGraph(t *testing.T) {
	d := open(t, Options{})
	p := alloc(t, d, 1)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	value := func() byte {
		var b [1]byte
		if err := d.Download(b[:], p); err != nil {
			t.Error(err)
		}
		return b[0]
	}
	if err := d.Fill(0, p, 1, 1); err != nil {
		t.Fatal(err)
	}
	g, err := d.Capture(s, func() error {
		_, err := d.Capture(s, func() error { return nil })
		wantError(t, "twice", err, "captured already")
		return d.Fill(s, p, 2, 1)
	})
	if err != nil || value() != 1 {
		t.Fatalf("the capture ran what it recorded: %d, %v", value(), err)
	}
	for range 2 {
		if err := errors.Join(d.Fill(0, p, 1, 1), g.Launch(0)); err != nil || value() != 2 {
			t.Errorf("%d, %v", value(), err)
		}
	}
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}
	wantError(t, "destroyed", g.Launch(0), "destroyed")
	_, err = d.Capture(0, func() error { return nil })
	wantError(t, "default stream", err, "cannot be captured")
	_, err = d.Capture(s, func() error { return errors.New("no kernel") })
	wantError(t, "failed", err, "capture: no kernel")
	if err := d.Fill(s, p, 3, 1); err != nil || value() != 3 {
		t.Errorf("after a failed capture: %d, %v", value(), err)
	}
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	d := Open(Options{Workers: 4})
	p := alloc(t, d, 1)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	_, allocErr := d.Alloc(1)
	_, streamErr := d.NewStream()
	_, graphErr := d.Capture(0, nil)
	if graphErr == nil {
		t.Error("captured on a closed device")
	}
	for name, err := range map[string]error{
		"alloc": allocErr, "stream": streamErr, "free": d.Free(p), "upload": d.Upload(p, []byte{1}), "download": d.Download([]byte{1}, p),
		"fill": d.Fill(0, p, 1, 1), "synchronize": d.Synchronize(t.Context(), 0), "close": d.Close(),
	} {
		if !errors.Is(err, cuda.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 10000 { // a goroutine that has nothing left to do may still be counted
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, before %d", runtime.NumGoroutine(), before)
}

// What fails on a lane is its own until it ends, then its stream's or nobody's.
func TestLanes(t *testing.T) {
	d := open(t, Options{})
	p := alloc(t, d, 10)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	lane := func(of cuda.Stream) cuda.Stream {
		t.Helper()
		l, err := d.NewLane(of)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	synchronize := func(s cuda.Stream, fails bool) {
		t.Helper()
		if err := d.Synchronize(t.Context(), s); errors.Is(err, cuda.ErrLaunch) != fails || !fails && err != nil {
			t.Errorf("stream %d: error %v", s, err)
		}
	}
	one, two := lane(s), lane(s)
	if err := errors.Join(d.Fill(one, p, 1, 11), d.Fill(two, p, 2, 10)); err != nil {
		t.Fatal(err)
	}
	synchronize(s, false)
	synchronize(two, false)
	got := make([]byte, 10)
	if err := d.Download(got, p); err != nil || got[9] != 2 {
		t.Errorf("%v, %v", got, err)
	}
	synchronize(one, true)
	synchronize(one, false) // it was reported

	for _, keep := range []bool{true, false} {
		// What is still queued when the lane and a lane of it end; and what has failed by then.
		three := lane(s)
		four := lane(three)
		stopped := make(chan struct{})
		d.queue <- operation{done: stopped}
		if err := d.Fill(four, p, 1, 11); err != nil {
			t.Fatal(err)
		}
		d.EndLane(four, true)
		d.EndLane(three, keep)
		<-stopped
		synchronize(s, keep)
		if err := d.Fill(one, p, 1, 11); err != nil {
			t.Fatal(err)
		}
		synchronize(s, false)
		d.EndLane(one, keep)
		synchronize(s, keep)
		one = lane(s)
	}
	d.EndLane(one, true)
	d.EndLane(two, true)
	d.EndLane(two, true)
	d.EndLane(s, true) // is none
	if len(d.streams) != 2 {
		t.Errorf("%d streams are left, want the default one and the test's", len(d.streams))
	}
	wantError(t, "ended", d.Fill(two, p, 1, 1), "was destroyed")
	_, err = d.NewLane(two)
	wantError(t, "of one that has ended", err, "new lane: stream 3 was not made by this device")
}

// What no machine has is an error, and not the end of the process.
func TestHugeMemory(t *testing.T) {
	for _, o := range []Options{{}, {MemoryBytes: math.MaxInt64}} {
		if o.MemoryBytes > 0 && runtime.GOOS != "linux" {
			continue // its owner knows what the machine has
		}
		d := open(t, o)
		for _, n := range []int64{1 << 46, 1 << 62, math.MaxInt64, d.Info().MemoryBytes + 1} {
			if _, err := d.Alloc(n); !errors.Is(err, cuda.ErrOutOfMemory) {
				t.Errorf("%d bytes: %v", n, err)
			}
			if _, err := d.AllocHost(n); !errors.Is(err, cuda.ErrOutOfMemory) {
				t.Errorf("%d bytes of host memory: %v", n, err)
			}
		}
	}
}
