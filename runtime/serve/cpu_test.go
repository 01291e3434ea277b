package serve_test

import (
	"errors"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// manyBlocks are kernels for which sequences are cut as on a larger device.
type manyBlocks struct{ *cpu.Kernels }

func (manyBlocks) Blocks(abi.Kind) int { return 8 }

// cpuKernels are the CPU backend's for a model.
func cpuKernels(tb testing.TB, dev *cpu.Device, m serve.Model) serve.Kernels {
	tb.Helper()
	k, err := cpu.NewKernels(dev, cpu.Config{
		Name: "toy", Group: m.Group, HeadDim: m.HeadDim, VHeadDim: m.VHeadDim, Element: cpu.BF16, Rope: m.Rope,
		PageSize: m.PageSize, Encoding: cpu.Encoding(m.Encoding), Window: m.Window, SinkTokens: m.SinkTokens, SinkLogits: m.SinkLogits,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return manyBlocks{k}
}

// newBench is an engine on the CPU.
func newBench(tb testing.TB, m serve.Model, o serve.Options) *toy.Bench {
	tb.Helper()
	dev := cpu.Open(cpu.Options{Workers: 2})
	return benchOf(tb, dev, cpuKernels(tb, dev, m), m, o)
}

// unshared hides shared decode.
type unshared struct{ serve.Kernels }

// benchOf is an engine on a device of its own.
func benchOf(tb testing.TB, dev *cpu.Device, k serve.Kernels, m serve.Model, o serve.Options) *toy.Bench {
	tb.Helper()
	e, err := serve.New(dev, k, m, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(e.Close(), dev.Close()); err != nil && !errors.Is(err, serve.ErrClosed) {
			tb.Error(err)
		}
	})
	return toy.New(dev, e, m)
}
