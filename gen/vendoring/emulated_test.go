package vendoring_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/vendoring"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/tests/testutil"
)

// TestOnEmulator runs the examples as a stranger would, on a libcuda that hands the
// work to the emulator: the loaders, the launches and the numbers are the real ones.
func TestOnEmulator(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	libraries := t.TempDir()
	command(t, ".", nil, cc, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-o", filepath.Join(libraries, "libcuda.so.1"), "testdata/libcuda.c")
	tests := []struct {
		name         string
		major, minor int
		image        string // the machine code that it is to take
		langs        []vendoring.Lang
		gpu          string // the name of one that chosenRules has a table for, or ""
	}{
		{"tiny", 8, 9, ".sm_86.cubin", []vendoring.Lang{vendoring.C}, ""},
		{"tiny", 9, 0, ".sm_90a.cubin", []vendoring.Lang{vendoring.C, vendoring.Go}, ""},
		{"tiny", 9, 0, ".sm_90a.cubin", []vendoring.Lang{vendoring.C, vendoring.Go}, "GPU A"},
		{"odd", 9, 0, ".sm_90a.cubin", []vendoring.Lang{vendoring.C, vendoring.Go}, ""},
		{"wide", 9, 0, ".sm_90a.cubin", []vendoring.Lang{vendoring.C, vendoring.Go}, ""},
		{"plain", 8, 7, ".sm_80.cubin", []vendoring.Lang{vendoring.C, vendoring.Go}, ""},
		{"one", 8, 0, ".sm_80.cubin", []vendoring.Lang{vendoring.C}, ""},
	}
	for _, test := range tests {
		for _, lang := range test.langs {
			t.Run(fmt.Sprintf("%s/%s/%d.%d%s", lang, test.name, test.major, test.minor, test.gpu), func(t *testing.T) {
				dev, err := emulate.Open(t.Context(), emulate.Options{CacheDir: testutil.Emulator(), Unoptimized: true, Seed: 1, Major: test.major, Minor: test.minor})
				if err != nil {
					t.Skip(err)
				}
				defer dev.Close()
				s := parse(t, test.name)
				var tuned []plan.Tuned
				if test.gpu != "" {
					tuned = chosenRules(t, s)
				}
				in := inputOf(t, s, tuned, lang)
				g := serve(t, dev, in.Output)
				env := []string{"LD_LIBRARY_PATH=" + libraries, "KGEN_TEST_DEVICE=" + g.path, "KGEN_TEST_NAME=" + test.gpu}
				var out string
				if lang == vendoring.C {
					dir := buildCOf(t, in)
					out = command(t, t.TempDir(), env, filepath.Join(dir, "example"), dir)
				} else {
					out = command(t, folderOf(t, in), append(env, stranger...), "go", "test", "-vet=off", "-v", "-count=1", ".")
					if strings.Contains(out, "--- SKIP") {
						t.Error("skipped")
					}
				}
				t.Log(out)
				if chosen := strings.Contains(g.decode, "b2"); chosen != (test.gpu != "") {
					t.Errorf("launched %s", g.decode)
				}
				for _, image := range g.loaded {
					if !strings.HasSuffix(image, test.image) {
						t.Errorf("took %s", image)
					}
				}
				if len(g.loaded) == 0 || len(g.held) > 0 || g.modules != 0 || strings.Contains(out, "decode") != (g.launches["decode"] == 1) {
					t.Errorf("loaded %q, launches %v; left over: memory %v, %d modules", g.loaded, g.launches, g.held, g.modules)
				}
			})
		}
	}
}

// TestNoGPU runs the examples where there is no driver, and where there is no GPU for it.
func TestNoGPU(t *testing.T) {
	dir := buildC(t, "plain")
	c := exec.Command(filepath.Join(dir, "example"))
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH=", "CUDA_VISIBLE_DEVICES=")
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 77 || string(out) != "no GPU\n" {
		t.Errorf("%v: %s", err, out)
	}
	out2 := command(t, folder(t, "plain", vendoring.Go), append(stranger, "CUDA_VISIBLE_DEVICES="), "go", "test", "-v", "-count=1", ".")
	if !strings.Contains(out2, "--- SKIP") || !strings.Contains(out2, "open plain on device 0: no GPU") {
		t.Error(out2)
	}
}

// gpu is the other end of testdata/libcuda.c.
type gpu struct {
	dev  *emulate.Device // nil: kernels are loaded and not launched
	info cuda.Info
	out  emit.Output
	path string

	next     uint64
	module   map[uint64]cuda.Module
	kernel   map[uint64]*entry
	aligned  map[abi.DevicePtr]abi.DevicePtr // what a program has: what the emulator gave
	held     map[abi.DevicePtr]bool
	modules  int
	loaded   []string
	launches map[string]int
	decode   string // the kernel of the last such launch
}

// multiprocessors are what the device says that it has.
const multiprocessors = 3

// notLaunched is a module of a kernel that is loaded alone.
type notLaunched struct{}

func (notLaunched) Kernel(string) (cuda.Kernel, error) { return nil, nil }
func (notLaunched) Unload() error                      { return nil }

type entry struct {
	cuda.Kernel
	kind   string
	name   string
	shared int // what the program has asked for
}

type request struct {
	Call      uint64
	Arguments [6]uint64
	Bytes     uint64
}

type answer struct{ Code, Value, More, Bytes uint64 }

func serve(t *testing.T, dev *emulate.Device, out emit.Output) *gpu {
	return serveAs(t, dev, dev.Info(), out)
}

func serveAs(t *testing.T, dev *emulate.Device, info cuda.Info, out emit.Output) *gpu {
	dir, err := os.MkdirTemp("", "gpu") // a short path: sockets have no longer ones
	if err != nil {
		t.Fatal(err)
	}
	g := &gpu{
		dev: dev, info: info, out: out, path: filepath.Join(dir, "s"), module: map[uint64]cuda.Module{}, kernel: map[uint64]*entry{},
		aligned: map[abi.DevicePtr]abi.DevicePtr{}, held: map[abi.DevicePtr]bool{}, launches: map[string]int{},
	}
	l, err := net.Listen("unix", g.path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if err := g.talk(c); err != nil {
				t.Error(err)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		os.RemoveAll(dir)
	})
	return g
}

// talk answers one process until it goes.
func (g *gpu) talk(c net.Conn) error {
	for {
		var q request
		if err := binary.Read(c, binary.LittleEndian, &q); err != nil {
			return nil
		}
		data := make([]byte, q.Bytes)
		if _, err := io.ReadFull(c, data); err != nil {
			return err
		}
		a, result, failed := g.answer(q, data)
		if failed != nil {
			a.Code = 999
		}
		a.Bytes = uint64(len(result))
		whole, err := binary.Append(nil, binary.LittleEndian, a)
		if err != nil {
			return err
		}
		if _, err := c.Write(append(whole, result...)); errors.Join(failed, err) != nil {
			return errors.Join(failed, err)
		}
	}
}

func (g *gpu) answer(q request, data []byte) (a answer, result []byte, err error) {
	p := abi.DevicePtr(q.Arguments[0])
	switch q.Call {
	case 1: // attribute
		values := map[uint64]int{16: multiprocessors, 75: g.info.Major, 76: g.info.Minor, 97: g.info.SharedPerBlock}
		a.Value = uint64(values[q.Arguments[0]])
		return a, nil, nil
	case 2: // load
		file, ok := strings.CutPrefix(string(data), cubinText)
		for _, k := range g.out.Kernels {
			if ok && strings.HasPrefix(file, strings.TrimSuffix(k.File, ".cu")+".") {
				var m cuda.Module = notLaunched{}
				var err error
				if g.dev != nil {
					m, err = g.dev.Load(cuda.Image{Name: k.File, Source: k.Source})
				}
				g.next++
				g.module[g.next] = m
				g.modules++
				g.loaded = append(g.loaded, file)
				return answer{Value: g.next}, nil, err
			}
		}
		return a, nil, fmt.Errorf("no such machine code: %q", data)
	case 3: // unload
		g.modules--
		return a, nil, g.module[q.Arguments[0]].Unload()
	case 4: // function
		k, err := g.module[q.Arguments[0]].Kernel(string(data))
		g.next++
		for _, e := range g.out.Manifest.Kernels {
			if e.Entry == string(data) {
				g.kernel[g.next] = &entry{Kernel: k, kind: string(e.Kind), name: e.Entry}
				a = answer{Value: g.next, More: uint64(paramBytes[e.Kind])}
			}
		}
		return a, nil, err
	case 5: // shared
		if q.Arguments[1] != 8 {
			return a, nil, fmt.Errorf("function attribute %d", q.Arguments[1])
		}
		g.kernel[q.Arguments[0]].shared = int(q.Arguments[2])
		return a, nil, nil
	case 6: // launch
		k, n := g.kernel[q.Arguments[0]], q.Arguments
		if int(n[4]) > k.shared {
			return a, nil, fmt.Errorf("%s with %d bytes of shared memory, %d were asked for", k.kind, n[4], k.shared)
		}
		g.launches[k.kind]++
		if k.kind == string(abi.KindDecode) {
			g.decode = k.name
		}
		return a, nil, k.Launch(0, cuda.LaunchConfig{GridX: int(n[1]), GridY: int(n[2]), GridZ: 1, Threads: int(n[3]), SharedBytes: int(n[4])}, data)
	case 7: // allocate
		given, err := g.dev.Alloc(int64(q.Arguments[0]) + 256)
		p := (given + 255) / 256 * 256
		g.aligned[p], g.held[p] = given, true
		return answer{Value: uint64(p)}, nil, err
	case 8: // release
		delete(g.held, p)
		return a, nil, g.dev.Free(g.aligned[p])
	case 9: // upload
		return a, nil, g.dev.Upload(p, data)
	case 10: // download
		result = make([]byte, q.Arguments[1])
		return a, result, g.dev.Download(result, p)
	case 11: // synchronize
		return a, nil, nil
	case 12: // map
		var m struct {
			Base    uint64
			Dims    [5]int64
			Strides [4]int64
			Box     [5]int64
		}
		if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, &m); err != nil {
			return a, nil, err
		}
		t := cuda.TensorMap{Base: abi.DevicePtr(m.Base), Dims: m.Dims, Strides: m.Strides}
		for i := range t.Box {
			t.Box[i] = int(m.Box[i])
		}
		encoded, err := g.dev.EncodeTensorMap(t)
		return a, encoded[:], err
	}
	return a, nil, fmt.Errorf("call %d", q.Call)
}

var paramBytes = map[abi.Kind]int{
	abi.KindAppend: binary.Size(abi.AppendParams{}), abi.KindPrefill: binary.Size(abi.AttendParams{}),
	abi.KindExtend: binary.Size(abi.AttendParams{}), abi.KindDecode: binary.Size(abi.AttendParams{}),
	abi.KindSharedDecode: binary.Size(abi.AttendParams{}),
	abi.KindMerge:        binary.Size(abi.MergeParams{}), abi.KindMaterialise: binary.Size(abi.MaterialiseParams{}),
}
