package emulate_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/templates"
	"github.com/kgen-project/kgen/tests/testutil"
)

func open(t testing.TB, o emulate.Options) *emulate.Device {
	t.Helper()
	if o.CacheDir == "" {
		o.CacheDir = testutil.Emulator()
	}
	d, err := emulate.Open(context.Background(), o)
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

// image is a file of testdata as the generator would flatten it.
func image(t testing.TB, name string) cuda.Image {
	t.Helper()
	ptx, err := templates.FS.ReadFile("ptx/sm80.cuh")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join("testdata", name+".cu"))
	if err != nil {
		t.Fatal(err)
	}
	ptx = fmt.Appendf(ptx, "\n#line 1 %q\n", name+".cu")
	return cuda.Image{Name: name, Source: append(ptx, source...)}
}

func load(t testing.TB, d cuda.Device, file, entry string) cuda.Kernel {
	t.Helper()
	return loadImage(t, d, image(t, file), entry)
}

// loadClustered is load for a file whose entry points do not say of which clusters they are:
// they are of clusters of so many blocks.
func loadClustered(t testing.TB, d cuda.Device, file, entry string, blocks int) cuda.Kernel {
	t.Helper()
	image := image(t, file)
	if blocks > 1 {
		dims := fmt.Appendf(nil, "__global__ void __cluster_dims__(%d, 1, 1) ", blocks)
		image.Source = bytes.ReplaceAll(image.Source, []byte("__global__ void "), dims)
	}
	return loadImage(t, d, image, entry)
}

func loadImage(t testing.TB, d cuda.Device, image cuda.Image, entry string) cuda.Kernel {
	t.Helper()
	m, err := d.Load(image)
	if err != nil {
		t.Fatal(err)
	}
	k, err := m.Kernel(entry)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func upload(t testing.TB, d cuda.Device, data any) abi.DevicePtr {
	t.Helper()
	raw := raw(t, data)
	p, err := d.Alloc(int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Upload(p, raw); err != nil {
		t.Fatal(err)
	}
	return p
}

func download[T any](t testing.TB, d cuda.Device, p abi.DevicePtr, n int) []T {
	t.Helper()
	out := make([]T, n)
	raw := make([]byte, binary.Size(out))
	if err := d.Download(raw, p); err != nil {
		t.Fatal(err)
	}
	if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func raw(t testing.TB, data any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, data); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// one is the launch of one block.
func one(threads, shared int) cuda.LaunchConfig { return row(1, threads, shared) }

// row is the launch of so many blocks along x.
func row(blocks, threads, shared int) cuda.LaunchConfig {
	return cuda.LaunchConfig{GridX: blocks, GridY: 1, GridZ: 1, Threads: threads, SharedBytes: shared}
}

func TestMemory(t *testing.T) {
	d := open(t, emulate.Options{})
	p, err := d.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if got := download[byte](t, d, p, 100); !bytes.Equal(got, bytes.Repeat([]byte{0xFF}, 100)) {
		t.Errorf("a new buffer holds %x", got)
	}
	if err := d.Fill(0, p+90, 7, 10); err != nil {
		t.Error(err)
	}
	if err := d.Upload(p+1, []byte{1, 2, 3}); err != nil {
		t.Error(err)
	}
	want := append([]byte{0xFF, 1, 2, 3}, bytes.Repeat([]byte{0xFF}, 86)...)
	want = append(want, bytes.Repeat([]byte{7}, 10)...)
	if got := download[byte](t, d, p, 100); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	for _, c := range []struct {
		what, want string
		err        error
	}{
		{"upload past the end", "they start 98 bytes into buffer #1 (100 bytes)", d.Upload(p+98, []byte{1, 2, 3})},
		{"download before the start", "2 bytes before the start of buffer #1", d.Download(make([]byte, 4), p-2)},
		{"fill of nothing known", "far from every buffer", d.Fill(0, 1<<40, 0, 1)},
		{"free inside", "not the start of a buffer", d.Free(p + 16)},
		{"free", "", d.Free(p)},
		{"free twice", "not the start of a buffer", d.Free(p)},
		{"download after free", "0 bytes into freed buffer #1 (100 bytes)", d.Download(make([]byte, 4), p)},
		{"free of null", "", d.Free(0)},
		{"alloc of nothing", "must be positive", func() error { _, err := d.Alloc(0); return err }()},
		{"alloc of too much", "no memory for", func() error { _, err := d.Alloc(1 << 60); return err }()},
	} {
		expect(t, c.what, c.err, c.want)
	}
}

// expect checks that err's text contains want; none if want is empty.
func expect(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: got error %v, want %q in it", what, err, want)
	}
}

func TestLoadErrors(t *testing.T) {
	d := open(t, emulate.Options{})
	_, err := d.Load(cuda.Image{Name: "empty"})
	expect(t, "empty source", err, "no entry point")
	_, err = d.Load(cuda.Image{Name: "wrong", Source: []byte("\nextern \"C\" __global__ void f(int x) { y = x; }")})
	expect(t, "wrong source", err, "wrong.cu:2:")
	m, err := d.Load(cuda.Image{Name: "good", Source: []byte(`extern "C" __global__ void f(const int x) {}`)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Kernel("g")
	expect(t, "unknown entry", err, "kernel g of good: no entry point")
	k, err := m.Kernel("f")
	expect(t, "known entry", err, "")
	expect(t, "size of parameters", k.Launch(0, one(32, 0), make([]byte, 8)), "takes 4 bytes of parameters, not 8")
	expect(t, "threads", k.Launch(0, one(48, 0), make([]byte, 4)), "multiple of 32")
	expect(t, "shared", k.Launch(0, one(32, 1<<20), make([]byte, 4)), "0 to 232448")
	expect(t, "grid", k.Launch(0, cuda.LaunchConfig{GridX: 1, GridY: 1 << 16, GridZ: 1, Threads: 32}, nil), "at most 65535")
	expect(t, "good", k.Launch(0, one(1024, 1000), make([]byte, 4)), "")
	expect(t, "unload", m.Unload(), "")
}

func TestOpenErrors(t *testing.T) {
	_, err := emulate.Open(context.Background(), emulate.Options{})
	expect(t, "no cache", err, "CacheDir is empty")
	_, err = emulate.Open(context.Background(), emulate.Options{CacheDir: testutil.Emulator(), CXX: "no-such-compiler"})
	expect(t, "no compiler", err, "no-such-compiler")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = emulate.Open(context.Background(), emulate.Options{CacheDir: filepath.Join(file, "below")})
	expect(t, "bad cache", err, "not a directory")
}

func TestBrokenCacheIsRebuilt(t *testing.T) {
	cache := t.TempDir()
	source := cuda.Image{Name: "f", Source: []byte(`extern "C" __global__ void f(const int x) {}`)}
	if _, err := open(t, emulate.Options{CacheDir: cache}).Load(source); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(cache, "*", "*", "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("the cache holds %q, %v; want the host and one kernel", files, err)
	}
	for _, file := range files { // not in place: the first device's process runs these
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".new", data[:len(data)/2], 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(t, emulate.Options{CacheDir: cache}).Load(source); err != nil {
		t.Error(err)
	}
}

// Kernels that differ in what their first lines say they are from are compiled once, and keep their lines.
func TestHeadsAreNotCompiled(t *testing.T) {
	d := open(t, emulate.Options{})
	load := func(head, body string) error {
		_, err := d.Load(cuda.Image{Name: "headed", Source: []byte(head + `extern "C" __global__ void headed(const int x) {` + body + "}")})
		return err
	}
	unique := fmt.Sprintf("/* %s */", time.Now()) // compiled by no test before
	compiled := func(head string) int {
		t.Helper()
		expect(t, head, load(head, unique), "")
		files, err := filepath.Glob(filepath.Join(testutil.Emulator(), "*", "*", "kernel*.so"))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, file := range files {
			if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, []byte("kgen_call_headed")) {
				n++
			}
		}
		return n
	}
	if a, b := compiled("// From a.\n// By hand.\n"), compiled("// From b.\n// By hand.\n"); a != b {
		t.Errorf("%d kernels are compiled, and %d with another head", a, b)
	}
	expect(t, "wrong", load("// From c.\n// By hand.\n", "wrong;"), "headed.cu:3:")
}

func TestCancelEndsTheProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	d, err := emulate.Open(ctx, emulate.Options{CacheDir: testutil.Emulator()})
	if err != nil {
		t.Fatal(err)
	}
	k := load(t, d, "mistakes", "mistakes")
	failed := make(chan error)
	go func() { failed <- mistake{which: 19}.launch(t, d, k, 1) }()
	time.Sleep(50 * time.Millisecond)
	cancel()
	expect(t, "launch", <-failed, "context canceled")
	_, err = d.Alloc(16)
	expect(t, "later call", err, "context canceled")
	expect(t, "close", d.Close(), "")
}

// The emulator must have every function of the ptx headers.
func TestFunctionsMatch(t *testing.T) {
	function := regexp.MustCompile(`(?m)^ *__device__ (?:static )?__forceinline__ .*?(\w+)(?:<\w+>)?\(`)
	for _, c := range []struct {
		ptx, emulator string
		functions     int // at least
	}{
		{"ptx/sm80.cuh", "emu/emulator.hpp", 20},
		{"ptx/sm90.cuh", "emu/sm90.hpp", 18},
		{"ptx/integers.cuh", "emu/integers.hpp", 10},
	} {
		emulator, err := templates.FS.ReadFile(c.emulator)
		if err != nil {
			t.Fatal(err)
		}
		ptx, err := templates.FS.ReadFile(c.ptx)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, f := range function.FindAllSubmatch(ptx, -1) {
			names[string(f[1])] = true
		}
		if len(names) < c.functions {
			t.Fatalf("found %d functions in %s", len(names), c.ptx)
		}
		for name := range names {
			if !regexp.MustCompile(`\b` + name + `(<\w+>)?\(`).Match(emulator) {
				t.Errorf("%s has no %s", c.emulator, name)
			}
		}
	}
}

func TestCountersAndSpeed(t *testing.T) {
	d := open(t, emulate.Options{})
	k := load(t, d, "speed", "speed")
	const threads, steps = 128, 2000
	out, err := d.Alloc(threads * 4)
	if err != nil {
		t.Fatal(err)
	}
	params := raw(t, struct {
		Out             abi.DevicePtr
		Steps, Reserved int32
	}{out, steps, 0})
	d.TakeCounters()
	elapsed, err := d.Time(context.Background(), 0, func() error { return k.Launch(0, one(threads, threads*16), params) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d steps of %d warps: %v", steps, threads/32, elapsed)
	for i, x := range download[float32](t, d, out, threads) {
		if x != 4*16*steps {
			t.Fatalf("thread %d has %v, want %v", i, x, 4*16*steps)
		}
	}
	want := emulate.Counters{
		Blocks: 1, Barriers: 1, LdMatrices: threads / 32 * steps, MMAs: threads / 32 * steps, SharedStoreBytes: threads * 16,
	}
	if got := d.TakeCounters(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := d.TakeCounters(); got != (emulate.Counters{}) {
		t.Errorf("counters are not taken: %+v", got)
	}
}

func TestSameSeedSameResult(t *testing.T) {
	var first string
	for range 3 {
		d := open(t, emulate.Options{Seed: 5})
		err := mistake{which: 20}.launch(t, d, load(t, d, "mistakes", "mistakes"), 1)
		if err == nil {
			t.Fatal("no error")
		}
		if first == "" {
			first = err.Error()
		}
		if err.Error() != first {
			t.Errorf("one seed, two results:\n%s\n%v", first, err)
		}
	}
}
