package toy

import (
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/serve"
)

// SmolLM2 is the shape of the generated kernels of that name, with so many layers.
func SmolLM2(layers int) serve.Model {
	return serve.Model{
		Name: "toy", SpecDigest: smollm2_135m.SpecDigest, Layers: layers,
		KVHeads: smollm2_135m.KVHeads, Group: smollm2_135m.Group, HeadDim: smollm2_135m.HeadDim, VHeadDim: smollm2_135m.VHeadDim,
		PageSize: smollm2_135m.PageSize, Encoding: smollm2_135m.Encoding, Rope: smollm2_135m.Rope(),
		Scale: smollm2_135m.Scale, RopeScale: smollm2_135m.RopeScale,
		Causal: smollm2_135m.Causal, Window: smollm2_135m.Window, SinkTokens: smollm2_135m.SinkTokens,
	}
}
