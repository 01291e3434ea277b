package verify

import (
	"context"

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
func Generated(dev cuda.Device, o kernel.Options) Provider {
	return func(ctx context.Context, s spec.Spec) (Kernels, error) {
		b, err := bundle(s)
		if err != nil {
			return Kernels{}, err
		}
		return open(ctx, dev, b, o)
	}
}

// bundle emits a spec.
func bundle(s spec.Spec) (kernel.Bundle, error) {
	plans, err := plan.All(s)
	if err != nil {
		return kernel.Bundle{}, err
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		return kernel.Bundle{}, err
	}
	b := kernel.Bundle{Name: s.Name, SpecDigest: spec.Digest(s), Cache: kernel.CacheShape{
		HeadDim: s.Model.HeadDim, VHeadDim: s.Model.VHeadDim, PageSize: s.Cache.PageSize, HeadMajor: s.Cache.Layout == spec.HND,
	}}
	for _, k := range out.Kernels {
		a := kernel.Artifact{
			Kind: abi.Kind(k.Plan.Kind), Entry: k.Entry, File: k.File, Family: string(k.Plan.Family),
			Rows: k.Plan.Rows, Keys: k.Plan.Keys, Stages: k.Plan.Stages, Warps: k.Plan.Warps,
			Group: s.Model.Group(), SharedBytes: k.Plan.Shared, Source: k.Source,
		}
		for _, t := range k.Plan.Targets {
			a.Targets = append(a.Targets, string(t))
		}
		b.Kernels = append(b.Kernels, a)
	}
	return b, nil
}

func open(ctx context.Context, dev cuda.Device, b kernel.Bundle, o kernel.Options) (Kernels, error) {
	set, err := kernel.Open(ctx, dev, b, o)
	if err != nil {
		return Kernels{}, err
	}
	k := Kernels{Launcher: set, Tiles: map[spec.Kind]spec.Tile{}}
	for _, kind := range spec.TiledKinds {
		if a, ok := set.Artifact(abi.Kind(kind)); ok {
			k.Tiles[kind] = spec.Tile{Rows: a.Rows, Keys: a.Keys, Stages: a.Stages, Warps: a.Warps}
		}
	}
	return k, nil
}
