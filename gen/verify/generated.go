package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/templates"
)

// Generated provides the kernels that the generator makes of a spec: planned,
// emitted, and opened on dev as o says.
func Generated(dev cuda.Device, o kernel.Options) Provider { return Emitted(dev, generate, o) }

// Emitted provides the kernels that emit makes of a spec.
func Emitted(dev cuda.Device, emit func(spec.Spec) (emit.Output, error), o kernel.Options) Provider {
	return func(ctx context.Context, s spec.Spec, kinds []spec.Kind) (Kernels, error) {
		out, err := emit(s)
		if err != nil {
			return Kernels{}, err
		}
		return open(ctx, dev, s, out.Bundle(s), kinds, o)
	}
}

func generate(s spec.Spec) (emit.Output, error) {
	plans, err := plan.All(s)
	if err != nil {
		return emit.Output{}, err
	}
	return emit.Emit(s, plans, templates.FS)
}

// open loads a bundle's kernels of these kinds: others would only be compiled.
func open(ctx context.Context, dev cuda.Device, s spec.Spec, b kernel.Bundle, kinds []spec.Kind, o kernel.Options) (Kernels, error) {
	b.Kernels = slices.DeleteFunc(slices.Clone(b.Kernels), func(a kernel.Artifact) bool { return !slices.Contains(kinds, spec.Kind(a.Kind)) })
	set, err := kernel.Open(ctx, dev, b, o)
	if err != nil {
		return Kernels{}, err
	}
	k := Kernels{Launcher: set, Tiles: map[spec.Kind]spec.Tile{}, Arithmetic: map[spec.Kind]string{}, Folds: map[spec.Kind]bool{}, KeysAhead: map[spec.Kind]bool{}}
	for _, kind := range spec.TiledKinds {
		if a, ok := set.Artifact(abi.Kind(kind)); ok {
			k.Tiles[kind] = spec.Tile{Rows: a.Rows, Keys: a.Keys, Stages: a.Stages, Warps: a.Warps}
			k.Folds[kind], k.KeysAhead[kind] = a.Folds, a.KeysAhead
			k.Arithmetic[kind] = a.Family
			if kind == spec.Decode {
				k.Arithmetic[kind] += fmt.Sprintf(", %d warps", plan.DecodeShares(s, plan.Family(a.Family), a.Warps))
			}
			if plan.FP16Keys(s, plan.Family(a.Family)) && !a.KeysAhead {
				k.Arithmetic[kind] += ", fp16 keys"
			}
			if plan.Family(a.Family) == plan.SM90 && plan.CapsTogether(s, kind) {
				k.Arithmetic[kind] += ", capped together"
				if a.Folds {
					k.Arithmetic[kind] += " from the first tile on"
				}
			}
		}
	}
	return k, nil
}
