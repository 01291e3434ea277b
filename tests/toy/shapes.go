package toy

import (
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/serve"
)

// SmolLM2 is the shape of the generated kernels of that name, with so many layers.
func SmolLM2(layers int) serve.Model {
	return serve.Model{
		Name: "toy", SpecDigest: smollm2_135m.SpecDigest, Layers: layers,
		KVHeads: smollm2_135m.KVHeads, Group: smollm2_135m.Group, HeadDim: smollm2_135m.HeadDim, VHeadDim: smollm2_135m.VHeadDim,
		PageSize: smollm2_135m.PageSize, Encoding: smollm2_135m.Encoding, Sharing: smollm2_135m.Sharing, Rope: smollm2_135m.Rope(),
		Scale: smollm2_135m.Scale, RopeScale: smollm2_135m.RopeScale,
		Causal: smollm2_135m.Causal, Window: smollm2_135m.Window, SinkTokens: smollm2_135m.SinkTokens,
	}
}

// Llama3 is the shape of the generated kernels of that name, with so many layers.
func Llama3(layers int) serve.Model {
	return serve.Model{
		Name: "toy", SpecDigest: llama3.SpecDigest, Layers: layers,
		KVHeads: llama3.KVHeads, Group: llama3.Group, HeadDim: llama3.HeadDim, VHeadDim: llama3.VHeadDim,
		PageSize: llama3.PageSize, Encoding: llama3.Encoding, Sharing: llama3.Sharing, Rope: llama3.Rope(),
		Scale: llama3.Scale, RopeScale: llama3.RopeScale,
		Causal: llama3.Causal, Window: llama3.Window, SinkTokens: llama3.SinkTokens,
	}
}
