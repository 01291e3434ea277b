package device

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// addPTX adds two arrays of int32.
//
//go:embed testdata/add.ptx
var addPTX []byte

type addParams struct {
	X, Y, Sum     abi.DevicePtr
	Count, Unused int32
}

func (p addParams) bytes(t testing.TB) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// opener opens a GPU through one binding of libcuda.
type opener struct {
	name string
	open func(ctx context.Context, ordinal int) (cuda.Device, error)
}

// eachBinding runs a test or benchmark over every binding that this binary has.
func eachBinding[T interface{ Run(string, func(T)) bool }](t T, f func(T, opener)) {
	for _, o := range openers {
		t.Run(o.name, func(t T) { f(t, o) })
	}
}

func (o opener) gpu(t testing.TB) cuda.Device {
	t.Helper()
	d, err := o.open(context.Background(), 0)
	if errors.Is(err, cuda.ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func alloc(t testing.TB, d cuda.Device, n int64) abi.DevicePtr {
	t.Helper()
	p, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Free(p); err != nil {
			t.Error(err)
		}
	})
	return p
}

func stream(t testing.TB, d cuda.Device) cuda.Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.DestroyStream(s); err != nil {
			t.Error(err)
		}
	})
	return s
}

func addKernel(t testing.TB, d cuda.Device) cuda.Kernel {
	t.Helper()
	m, err := d.Load(cuda.Image{Name: "add", Cubin: addPTX})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Unload(); err != nil {
			t.Error(err)
		}
	})
	k, err := m.Kernel("add")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const count = 1000

var addConfig = cuda.LaunchConfig{GridX: (count + 127) / 128, GridY: 1, GridZ: 1, Threads: 128}

// setup uploads x[i] = i and y[i] = 10*i and gives the sums that add makes.
func setup(t testing.TB, d cuda.Device) (p addParams, want []byte) {
	t.Helper()
	var x, y []byte
	for i := range uint32(count) {
		x = binary.LittleEndian.AppendUint32(x, i)
		y = binary.LittleEndian.AppendUint32(y, 10*i)
		want = binary.LittleEndian.AppendUint32(want, 11*i)
	}
	p = addParams{X: alloc(t, d, 4*count), Y: alloc(t, d, 4*count), Sum: alloc(t, d, 4*count), Count: count}
	if err := errors.Join(d.Upload(p.X, x), d.Upload(p.Y, y), d.Fill(0, p.Sum, 0xff, 4*count)); err != nil {
		t.Fatal(err)
	}
	return p, want
}

func TestInfo(t *testing.T) { eachBinding(t, testInfo) }

func testInfo(t *testing.T, o opener) {
	d := o.gpu(t)
	i := d.Info()
	t.Logf("%+v", i)
	if i.Name == "" || i.Major < 5 || i.Multiprocessors < 1 || i.SharedPerBlock < 48<<10 || i.L2Bytes < 1<<18 ||
		i.MemoryBytes < 1<<30 || !strings.HasPrefix(i.Driver, "CUDA ") || i.EmulatesSource {
		t.Error("implausible")
	}
	free, total, err := d.(cuda.MemoryDevice).Memory()
	if err != nil || free <= 0 || free > total || total > i.MemoryBytes {
		t.Errorf("memory: %d of %d, %v", free, total, err)
	}
}

func TestOrdinals(t *testing.T) { eachBinding(t, testOrdinals) }

func testOrdinals(t *testing.T, o opener) {
	o.gpu(t)
	for _, ordinal := range []int{-1, 1000} {
		if _, err := o.open(context.Background(), ordinal); !errors.Is(err, cuda.ErrNoDevice) {
			t.Errorf("device %d: error %v", ordinal, err)
		}
	}
}

func TestFill(t *testing.T) { eachBinding(t, testFill) }

func testFill(t *testing.T, o opener) {
	d := o.gpu(t)
	s := stream(t, d)
	p := alloc(t, d, 1<<20)
	if p%256 != 0 {
		t.Errorf("address %x", p)
	}
	got := make([]byte, 1<<20)
	if err := errors.Join(d.Fill(s, p, 3, 1<<20), d.Fill(s, p+100, 7, 50), d.Download(got, p)); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte{3}, 1<<20)
	copy(want[100:150], bytes.Repeat([]byte{7}, 50))
	if !bytes.Equal(got, want) {
		t.Error("wrong bytes")
	}
}

func TestLaunch(t *testing.T) { eachBinding(t, testLaunch) }

func testLaunch(t *testing.T, o opener) {
	d := o.gpu(t)
	k := addKernel(t, d)
	for name, s := range map[string]cuda.Stream{"default stream": 0, "own stream": stream(t, d)} {
		p, want := setup(t, d)
		if err := k.Launch(s, addConfig, p.bytes(t)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if err := d.Download(got, p.Sum); err != nil { // waits for the launch by itself
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: wrong sums: % x", name, got[:32])
		}
		if err := d.Synchronize(context.Background(), s); err != nil {
			t.Error(err)
		}
	}
}

func TestConcurrentLaunches(t *testing.T) { eachBinding(t, testConcurrentLaunches) }

func testConcurrentLaunches(t *testing.T, o opener) {
	d := o.gpu(t)
	k := addKernel(t, d)
	var group sync.WaitGroup
	for range 8 {
		s := stream(t, d)
		p, want := setup(t, d)
		params := p.bytes(t)
		group.Go(func() {
			got := make([]byte, len(want))
			for range 50 {
				err := errors.Join(d.Fill(s, p.Sum, 0, 4*count), k.Launch(s, addConfig, params),
					d.Synchronize(context.Background(), s), d.Download(got, p.Sum))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("wrong sums or %v", err)
					return
				}
			}
		})
	}
	group.Wait()
}

func TestLargeSharedMemory(t *testing.T) { eachBinding(t, testLargeSharedMemory) }

func testLargeSharedMemory(t *testing.T, o opener) {
	d := o.gpu(t)
	k := addKernel(t, d)
	p, want := setup(t, d)
	c := addConfig
	c.SharedBytes = d.Info().SharedPerBlock
	got := make([]byte, len(want))
	if err := errors.Join(k.Launch(0, c, p.bytes(t)), d.Download(got, p.Sum)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes: wrong sums or %v", c.SharedBytes, err)
	}
	c.SharedBytes += 1024
	var e *cuda.Error
	if err := k.Launch(0, c, p.bytes(t)); !errors.As(err, &e) || e.Call != "cuFuncSetAttribute" || e.Code != 1 {
		t.Errorf("%d bytes: error %v", c.SharedBytes, err)
	}
	c.SharedBytes, c.Threads = 0, 2048
	if err := k.Launch(0, c, p.bytes(t)); !errors.As(err, &e) || e.Call != "cuLaunchKernel" || e.Code != 1 {
		t.Errorf("2048 threads: error %v", err)
	}
	// The device is as good as before.
	if err := errors.Join(k.Launch(0, addConfig, p.bytes(t)), d.Synchronize(context.Background(), 0)); err != nil {
		t.Error(err)
	}
}

func TestGraph(t *testing.T) { eachBinding(t, testGraph) }

func testGraph(t *testing.T, o opener) {
	d := o.gpu(t)
	k := addKernel(t, d)
	s := stream(t, d)
	p, want := setup(t, d)
	got := make([]byte, len(want))
	g, err := d.(cuda.GraphDevice).Capture(s, func() error {
		again := addParams{X: p.Sum, Y: p.Y, Sum: p.Sum, Count: count}
		return errors.Join(k.Launch(s, addConfig, p.bytes(t)), k.Launch(s, addConfig, again.bytes(t)))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Download(got, p.Sum); err != nil || got[0] != 0xff {
		t.Errorf("capturing ran something: % x, %v", got[:8], err)
	}
	for range 3 {
		if err := errors.Join(g.Launch(s), d.Download(got, p.Sum)); err != nil {
			t.Fatal(err)
		}
		for i := range uint32(count) {
			if n := binary.LittleEndian.Uint32(got[4*i:]); n != 21*i {
				t.Fatalf("sum %d is %d", i, n)
			}
		}
	}
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}

	// What a capture refuses leaves the stream usable.
	if _, err := d.(cuda.GraphDevice).Capture(s, func() error { return d.Synchronize(context.Background(), s) }); err == nil {
		t.Error("a wait was captured")
	}
	failed := errors.New("failed")
	if _, err := d.(cuda.GraphDevice).Capture(s, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if err := errors.Join(k.Launch(s, addConfig, p.bytes(t)), d.Download(got, p.Sum)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("after failed captures: wrong sums or %v", err)
	}
}

func TestTensorMap(t *testing.T) { eachBinding(t, testTensorMap) }

func testTensorMap(t *testing.T, o opener) {
	d := o.gpu(t)
	if d.Info().Major < 9 {
		t.Skip("tensor copies want compute capability 9.0")
	}
	boxes := cuda.TensorMap{
		Base: alloc(t, d, 1<<20), Dims: [5]int64{64, 8, 2 * 8, 2, 31}, // pages of 16 tokens and 8 heads of 128 elements
		Strides: [4]int64{2048, 128, 16384, 32768}, Box: [5]int{64, 8, 2, 2, 1},
	}
	mapper := d.(cuda.TensorMapper)
	first, err := mapper.EncodeTensorMap(boxes)
	if err != nil || first == [128]byte{} {
		t.Fatalf("%x, %v", first, err)
	}
	boxes.Base += 1 << 15
	if second, err := mapper.EncodeTensorMap(boxes); err != nil || second == first {
		t.Errorf("another base gives the same map, or %v", err)
	}
	boxes.Box[0] = 128 // more than a swizzle of 128 bytes takes
	if _, err := mapper.EncodeTensorMap(boxes); err == nil || !strings.Contains(err.Error(), "cuTensorMapEncodeTiled: ") {
		t.Errorf("a box of 256 bytes: error %v", err)
	}
}

func TestTime(t *testing.T) { eachBinding(t, testTime) }

func testTime(t *testing.T, o opener) {
	d := o.gpu(t)
	const n = 1 << 30
	s, p := stream(t, d), alloc(t, d, n)
	for _, s := range []cuda.Stream{0, s} {
		got, err := d.Time(context.Background(), s, func() error { return d.Fill(s, p, 1, n) })
		if err != nil || got < 50*time.Microsecond || got > time.Second { // at most 20 TB/s
			t.Errorf("1 GiB filled in %v, %v", got, err)
		}
	}
}

func TestOutOfMemory(t *testing.T) { eachBinding(t, testOutOfMemory) }

func testOutOfMemory(t *testing.T, o opener) {
	d := o.gpu(t)
	_, err := d.Alloc(10 << 40)
	if !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): ") {
		t.Errorf("10 TiB: error %v", err)
	}
	alloc(t, d, 1<<20)
}

func TestBadImages(t *testing.T) { eachBinding(t, testBadImages) }

func testBadImages(t *testing.T, o opener) {
	d := o.gpu(t)
	_, err := d.Load(cuda.Image{Name: "bad", Cubin: bytes.Replace(addPTX, []byte("mad.lo.s32"), []byte("mad.no.such"), 1)})
	if err == nil || !strings.Contains(err.Error(), "cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX") || !strings.Contains(err.Error(), "line 18; error") {
		t.Errorf("the assembler's message is missing: %v", err)
	}
	if _, err := d.Load(cuda.Image{Name: "bad", Cubin: []byte("\x7fELF and nothing more, yet long enough to be looked at, which is 64 bytes")}); err == nil {
		t.Error("a broken cubin was loaded")
	}
	m, err := d.Load(cuda.Image{Name: "add", Cubin: addPTX})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unload()
	if _, err := m.Kernel("sub"); err == nil || !strings.Contains(err.Error(), "sub: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)") {
		t.Errorf("absent entry: error %v", err)
	}
}

// TestIllegalAddress runs in a process of its own: the failure stays with the
// context for good.
func TestIllegalAddress(t *testing.T) { eachBinding(t, testIllegalAddress) }

func testIllegalAddress(t *testing.T, o opener) {
	const variable = "KGEN_TEST_ILLEGAL_ADDRESS"
	if os.Getenv(variable) == "" {
		o.gpu(t)
		c := exec.Command(os.Args[0], "-test.run=^TestIllegalAddress$/^"+o.name+"$", "-test.v")
		c.Env = append(os.Environ(), variable+"=1")
		out, err := c.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("seen: ")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	d, err := o.open(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Load(cuda.Image{Name: "add", Cubin: addPTX})
	if err != nil {
		t.Fatal(err)
	}
	k, err := m.Kernel("add")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Launch(0, addConfig, addParams{Count: count}.bytes(t)); err != nil {
		t.Fatal(err)
	}
	err = d.Synchronize(context.Background(), 0)
	if !errors.Is(err, cuda.ErrLaunch) || !strings.Contains(err.Error(), "cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700)") {
		t.Errorf("error %v", err)
	}
	t.Logf("seen: %v", err)
}

// BenchmarkLaunch is the host's cost of a launch; the queue is emptied often
// enough not to fill.
func BenchmarkLaunch(b *testing.B) { eachBinding(b, benchmarkLaunch) }

func benchmarkLaunch(b *testing.B, o opener) {
	d := o.gpu(b)
	k := addKernel(b, d)
	s := stream(b, d)
	p, _ := setup(b, d)
	params := p.bytes(b)
	for i := 0; b.Loop(); i++ {
		if err := k.Launch(s, addConfig, params); err != nil {
			b.Fatal(err)
		}
		if i%256 == 255 {
			b.StopTimer()
			if err := d.Synchronize(context.Background(), s); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
}

// BenchmarkGraphLaunch is a graph of 100 launches, to the end of its work.
func BenchmarkGraphLaunch(b *testing.B) { eachBinding(b, benchmarkGraphLaunch) }

func benchmarkGraphLaunch(b *testing.B, o opener) {
	d := o.gpu(b)
	k := addKernel(b, d)
	s := stream(b, d)
	p, _ := setup(b, d)
	params := p.bytes(b)
	g, err := d.(cuda.GraphDevice).Capture(s, func() error {
		for range 100 {
			if err := k.Launch(s, addConfig, params); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Destroy()
	for b.Loop() {
		if err := errors.Join(g.Launch(s), d.Synchronize(context.Background(), s)); err != nil {
			b.Fatal(err)
		}
	}
}
