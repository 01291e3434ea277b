package emit

import (
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// Bundle is what the bindings would hold, without machine code.
func (o Output) Bundle(s spec.Spec) kernel.Bundle {
	b := kernel.Bundle{Name: s.Name, SpecDigest: spec.Digest(s), Spec: constants(s), Cache: kernel.CacheShape{
		HeadDim: s.Model.HeadDim, VHeadDim: s.Model.VHeadDim, PageSize: s.Cache.PageSize, HeadMajor: s.Cache.Layout == spec.HND,
	}}
	for _, k := range o.Kernels {
		a := kernel.Artifact{
			Kind: abi.Kind(k.Plan.Kind), Entry: k.Entry, File: k.File, Family: string(k.Plan.Family),
			Rows: k.Plan.ItemRows(s.Model.Group()), Keys: k.Plan.Keys, Stages: k.Plan.Stages, Warps: k.Plan.Warps,
			SharedBytes: k.Plan.Shared, Blocks: moreThanOne(k.Plan.MinBlocks), Cluster: moreThanOne(k.Plan.Cluster), Source: k.Source,
			Folds: k.Plan.Folds, KeysAhead: k.Plan.KeysAhead, Targets: words(k.Plan.Targets), Tuned: words(k.Plan.Tuned),
		}
		b.Kernels = append(b.Kernels, a)
	}
	for _, t := range o.Manifest.Tuned {
		tuned := kernel.Tuned{Device: t.GPU, Target: t.Target}
		for _, r := range t.Rules {
			tuned.Rules = append(tuned.Rules, kernel.Rule(r))
		}
		b.Tuned = append(b.Tuned, tuned)
	}
	return b
}

// constants are those of [Facts] that launches depend on.
func constants(s spec.Spec) kernel.Spec {
	scale, rotated := s.Rope.ScoreFactors(s.Model.HeadDim)
	return kernel.Spec{
		KVHeads: s.Model.KVHeads, Group: s.Model.Group(), HeadDim: s.Model.HeadDim, VHeadDim: s.Model.VHeadDim, DType: string(s.Model.DType),
		PageSize: s.Cache.PageSize, Encoding: string(s.Cache.Encoding), Sharing: string(s.Sharing), Batching: string(s.Batching), Rope: s.Rope, Scale: float32(s.Scale * scale), RopeScale: float32(rotated),
		Causal: s.Masks.Causal, Window: s.Masks.Window, SinkTokens: s.Masks.SinkTokens, SinkLogits: s.Masks.SinkLogits, SoftCap: s.Masks.SoftCap,
	}
}

func words(targets []spec.Target) []string {
	var out []string
	for _, t := range targets {
		out = append(out, string(t))
	}
	return out
}
