package verify

import (
	"context"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
)

// CPU provides the kernels of the CPU backend, of any spec.
func CPU(dev *cpu.Device) Provider {
	return func(_ context.Context, s spec.Spec, _ []spec.Kind) (Kernels, error) {
		set, err := cpu.NewKernels(dev, CPUConfig(s))
		if err != nil {
			return Kernels{}, err
		}
		k := Kernels{Launcher: set, Tiles: map[spec.Kind]spec.Tile{}, Folds: map[spec.Kind]bool{}}
		for _, kind := range spec.TiledKinds {
			rows, keys := set.Tile(abi.Kind(kind))
			k.Tiles[kind] = spec.Tile{Rows: rows, Keys: keys}
			k.Folds[kind] = true
		}
		return k, nil
	}
}

// CPUConfig is what the CPU backend's kernels take of a spec.
func CPUConfig(s spec.Spec) cpu.Config {
	return cpu.Config{
		Name: s.Name, Group: s.Model.Group(), HeadDim: s.Model.HeadDim, VHeadDim: s.Model.VHeadDim,
		Element: cpu.Element(s.Model.DType), Rope: s.Rope,
		PageSize: s.Cache.PageSize, HeadMajor: s.Cache.Layout == spec.HND, Encoding: cpu.Encoding(s.Cache.Encoding),
		Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens, SinkLogits: s.Masks.SinkLogits, SoftCap: s.Masks.SoftCap,
	}
}
