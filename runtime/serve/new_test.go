package serve_test

import (
	"math"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

func TestNewErrors(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1, MemoryBytes: 1 << 20})
	defer dev.Close()
	kernels := unshared{cpuKernels(t, dev, toy.Small())} // which don't tell what they were made for
	for _, c := range []struct {
		change func(*serve.Model, *serve.Options)
		want   string
	}{
		{func(m *serve.Model, _ *serve.Options) { m.Group = 0 }, "the model's Group is 0"},
		{func(m *serve.Model, _ *serve.Options) { m.PageSize = 12 }, "the model's PageSize is 12, want a power of two"},
		{func(m *serve.Model, _ *serve.Options) { m.Group = 100 }, "a token's group of query heads takes 100"},
		{func(m *serve.Model, _ *serve.Options) { m.Encoding = "packed" }, `Encoding is "packed", want segment, raw or baked`},
		{func(m *serve.Model, _ *serve.Options) { m.Sharing = "both" }, `Sharing is "both", want fastest or bitwise`},
		{func(m *serve.Model, _ *serve.Options) { m.Batching = "both" }, `Batching is "both", want fastest or bitwise`},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = 0 }, "Scale is 0"},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = float32(math.NaN()) }, "Scale is NaN and its RopeScale 1: both must be positive and finite"},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = float32(math.Inf(1)) }, "Scale is +Inf"},
		{func(m *serve.Model, _ *serve.Options) { m.Scale = -1 }, "Scale is -1"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = 0 }, "RopeScale 0: both must be"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = float32(math.NaN()) }, "RopeScale NaN"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = float32(math.Inf(-1)) }, "RopeScale -Inf"},
		{func(m *serve.Model, _ *serve.Options) { m.RopeScale = -1 }, "RopeScale -1"},
		{func(m *serve.Model, _ *serve.Options) {
			m.Rope.RotaryDim, m.Rope.Frequencies = 7, m.Rope.Frequencies[:3]
		}, "Rope rotates 7 of 8 dimensions"},
		{func(m *serve.Model, _ *serve.Options) { m.Rope.Pairing = "both" }, `Rope.Pairing is "both", want half or interleaved`},
		{func(m *serve.Model, _ *serve.Options) { m.Window = math.MaxInt32 + 1 }, "Window is 2147483648, SinkTokens 0: want at most 2147483647"},
		{func(m *serve.Model, _ *serve.Options) { m.SinkTokens = math.MaxInt32 + 1 }, "SinkTokens 2147483648: want at most"},
		{func(m *serve.Model, _ *serve.Options) { m.DType = "fp8" }, `DType is "fp8", want bf16 or fp16`},
		{func(m *serve.Model, _ *serve.Options) { m.SoftCap = -1 }, "SoftCap is -1: it must not be negative"},
		{func(m *serve.Model, _ *serve.Options) { m.SoftCap = math.NaN() }, "SoftCap is NaN"},
		{func(m *serve.Model, _ *serve.Options) { m.Window = -1 }, "Window is -1"},
		{func(m *serve.Model, _ *serve.Options) { m.MaxPosition = 5000 }, "MaxPosition is 5000, and its RoPE table ends at 4096"},
		{func(m *serve.Model, _ *serve.Options) { m.Rope.MaxPosition = 0 }, "at positions below 0"},
		{func(m *serve.Model, _ *serve.Options) { m.Rope.Frequencies = m.Rope.Frequencies[1:] }, "by 3 frequencies"},
		{func(m *serve.Model, _ *serve.Options) { m.Layers = 0 }, "Layers is 0"},
		{func(_ *serve.Model, o *serve.Options) { o.Pages = 0 }, "0 pages"},
		{func(_ *serve.Model, o *serve.Options) { o.Pages = 1 << 16 }, "out of device memory"},
	} {
		m, o := toy.Small(), serve.Options{Pages: 10}
		c.change(&m, &o)
		if _, err := serve.New(dev, kernels, m, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// specified are kernels of a spec.
type specified struct {
	serve.Kernels
	digest string
	spec   kernel.Spec
}

func (k specified) SpecDigest() string { return k.digest }
func (k specified) Spec() kernel.Spec  { return k.spec }

// without are kernels of which one kind is missing.
type without struct {
	serve.Kernels
	kind abi.Kind
}

func (k without) Tile(kind abi.Kind) (rows, keys int) {
	if kind == k.kind {
		return 0, 0
	}
	return k.Kernels.Tile(kind)
}

func (k without) Artifact(kind abi.Kind) (kernel.Artifact, bool) {
	return kernel.Artifact{}, kind != k.kind
}

func TestMissingKernels(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	m := toy.Small()
	for _, kind := range []abi.Kind{abi.KindAppend, abi.KindPrefill, abi.KindExtend, abi.KindDecode, abi.KindMerge} {
		_, err := serve.New(dev, without{cpuKernels(t, dev, m), kind}, m, serve.Options{Pages: 10})
		if want := "the kernels have no " + string(kind) + ": add it"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestOtherSpecsKernels(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	m := toy.Small()
	right := kernel.Spec{
		KVHeads: 8, Group: m.Group, HeadDim: m.HeadDim, VHeadDim: m.VHeadDim, PageSize: m.PageSize, Encoding: m.Encoding,
		Sharing: "bitwise", Rope: m.Rope, Causal: true,
	}
	windowed := right
	windowed.Window, windowed.SinkTokens = 100, 4
	capped := right // right's package is too old to say so
	capped.DType, capped.SoftCap, capped.SinkLogits = "fp16", 30, true
	for _, c := range []struct {
		digest string
		spec   kernel.Spec
		want   string
	}{
		{m.SpecDigest, right, ""},
		{m.SpecDigest, kernel.Spec{}, ""},
		{"another", right, `the kernels are of the spec with digest "another", and the model's SpecDigest is "digest"`},
		{m.SpecDigest, windowed, "Window of the kernels' spec is 100, and of the model 0\nSinkTokens of the kernels' spec is 4, and of the model 0"},
		{m.SpecDigest, capped, "SinkLogits of the kernels' spec is true, and of the model false\nSoftCap of the kernels' spec is 30, and of the model 0"},
	} {
		e, err := serve.New(dev, specified{cpuKernels(t, dev, m), c.digest, c.spec}, m, serve.Options{Pages: 10})
		if err == nil {
			err = e.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// The CPU's kernels are held to as the GPU's are, as far as they know a spec.
func TestOtherCPUKernels(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	for _, c := range []struct {
		change func(*serve.Model)
		want   string
	}{
		{func(*serve.Model) {}, ""},
		{func(m *serve.Model) { m.DType = "bf16" }, ""},
		{func(m *serve.Model) { m.Causal = false }, ""}, // each run says it
		{func(m *serve.Model) { m.DType = "fp16" }, "DType of the kernels' spec is bf16, and of the model fp16"},
		{func(m *serve.Model) { m.Group = 4 }, "Group of the kernels' spec is 2, and of the model 4"},
		{func(m *serve.Model) { m.HeadDim = 16 }, "HeadDim of the kernels' spec is 8, and of the model 16"},
		{func(m *serve.Model) { m.VHeadDim = 16 }, "VHeadDim of the kernels' spec is 8, and of the model 16"},
		{func(m *serve.Model) { m.PageSize = 8 }, "PageSize of the kernels' spec is 4, and of the model 8"},
		{func(m *serve.Model) { m.Encoding = "raw" }, "Encoding of the kernels' spec is segment, and of the model raw"},
		{func(m *serve.Model) { m.Rope.Pairing = "interleaved" }, "Rope.Pairing of the kernels' spec is half, and of the model interleaved"},
		{func(m *serve.Model) { m.Window, m.SinkTokens = 9, 1 }, "Window of the kernels' spec is 0, and of the model 9\nSinkTokens of the kernels' spec is 0, and of the model 1"},
		{func(m *serve.Model) { m.SinkLogits = true }, "SinkLogits of the kernels' spec is false, and of the model true"},
		{func(m *serve.Model) { m.SoftCap = 50 }, "SoftCap of the kernels' spec is 0, and of the model 50"},
	} {
		m := toy.Small()
		c.change(&m)
		e, err := serve.New(dev, cpuKernels(t, dev, toy.Small()), m, serve.Options{Pages: 10})
		if err == nil {
			err = e.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// Logits are there for kernels that read them, and for no others.
func TestSinkLogits(t *testing.T) {
	for has, c := range map[bool]struct {
		given abi.DevicePtr
		want  string
	}{
		true:  {0, "attend layer 0: sink logits are null, and the model has SinkLogits"},
		false: {16, "attend layer 0: sink logits 0x10: they must be null, as the model has no SinkLogits"},
	} {
		m := toy.Small()
		m.SinkLogits = has
		b := newBench(t, m, serve.Options{Pages: 10})
		s, err := b.Engine.Open(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		step, err := b.Engine.Schedule(t.Context(), []serve.Entry{{Sequence: s, Tokens: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer step.Abort()
		io := serve.IO{Q: 16, K: 16, V: 16, Out: 16, SinkLogits: c.given}
		if err := step.Attend(t.Context(), 0, io); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
		io.SinkLogits = 16 - c.given
		if err := step.Attend(t.Context(), 0, io); err != nil {
			t.Error(err)
		}
	}
}
