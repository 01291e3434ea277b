package importer

import (
	"slices"
	"strings"
)

// family is what the published code of a model_type does with the fields of
// its config.json.
type family struct {
	architecture string  // what the names of its classes begin with
	theta        float64 // rope_theta where the file does not say; 0: it has to
	kvHeads      bool    // num_key_value_heads may be missing: as many as query heads
	headDim      bool    // head_dim may be missing: hidden_size / num_attention_heads
	partial      bool    // rotates a part of the dimensions, by partial_rotary_factor
	softCap      bool    // reads attn_logit_softcapping and query_pre_attn_scalar
	ownCode      bool    // auto_map names code that is the same as the published one
	window       func(*importer) int
	inert        map[string]string // further fields, and the only JSON value of each that changes nothing; "": any
}

var families = map[string]family{
	"llama":   {architecture: "Llama", theta: 10000, kvHeads: true, headDim: true, window: noWindow},
	"mistral": {architecture: "Mistral", headDim: true, window: everyLayer},
	"mixtral": {architecture: "Mixtral", headDim: true, window: everyLayer, inert: anyOf(
		"num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef router_jitter_noise")},
	"qwen2": {architecture: "Qwen2", headDim: true, window: upperLayers},
	"qwen3": {architecture: "Qwen3", window: upperLayers},
	"qwen3_moe": {architecture: "Qwen3Moe", window: upperLayers, inert: anyOf(
		"decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts num_experts_per_tok " +
			"output_router_logits router_aux_loss_coef")},
	"phi3": {architecture: "Phi3", kvHeads: true, headDim: true, partial: true, ownCode: true, window: everyLayer,
		inert: map[string]string{"embd_pdrop": "", "resid_pdrop": "", "lm_head_bias": "", "full_attn_mod": "1", "interpolate_factor": "1"}},
	"gemma": {architecture: "Gemma", window: noWindow, inert: anyOf("hidden_activation")},
	"gemma2": {architecture: "Gemma2", softCap: true, window: byLayerTypes, inert: anyOf(
		"cache_implementation final_logit_softcapping hidden_activation")},
}

// reasons says why some well-known families are not to be had.
var reasons = map[string]string{
	"gpt_oss":      mixedLayers,
	"gemma3":       mixedLayers,
	"gemma3_text":  mixedLayers,
	"gemma3n":      mixedLayers,
	"gemma3n_text": mixedLayers,
	"cohere2":      mixedLayers,
	"llama4":       mixedLayers,
	"llama4_text":  mixedLayers,
	"deepseek_v2":  "its latent attention (MLA) is not in this version",
	"deepseek_v3":  "its latent attention (MLA) is not in this version",
	"qwen2_vl":     "M-RoPE, with several positions a token, is not in this version",
	"qwen2_5_vl":   "M-RoPE, with several positions a token, is not in this version",
	"qwen3_vl":     "M-RoPE, with several positions a token, is not in this version",
	"qwen3_next":   mixedLayers,
	"smollm3":      "some of its layers have no RoPE, and a spec has one rule for all layers; write a spec for each kind of layer by hand",
	"gpt_neox":     "its fields have names of their own, which are not known to kgen import",
	"gpt2":         "it has learned positions, not RoPE",
	"bloom":        "it has ALiBi, not RoPE",
	"mpt":          "it has ALiBi, not RoPE",
	"falcon_mamba": "it has no attention",
	"mamba":        "it has no attention",
}

const mixedLayers = "its layers differ in their attention, and a spec has one shape for all layers; write a spec for each kind of layer by hand"

// inert is the fields of any family that change nothing in attention between
// the projections, and the only JSON value of each for which that holds; "":
// any.
var inert = func() map[string]string {
	m := anyOf(`_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path attention_bias attention_dropout
		attn_implementation begin_suppress_tokens bos_token_id chunk_size_feed_forward decoder_start_token_id eos_token_id finetuning_task
		hidden_act hidden_size id2label initializer_range intermediate_size is_decoder is_llama_config label2id
		max_position_embeddings mlp_bias model_type num_hidden_layers num_labels output_attentions output_hidden_states
		pad_token_id pretraining_tp problem_type return_dict rms_norm_eps sep_token_id task_specific_params tf_legacy_loss
		tie_encoder_decoder tie_word_embeddings tokenizer_class torchscript transformers.js_config transformers_version unk_token_id
		unsloth_fixed unsloth_version use_bfloat16 use_cache vocab_size`)
	m["add_cross_attention"] = "false"
	m["is_encoder_decoder"] = "false"
	m["pruned_heads"] = "{}"
	m["rope_interleaved"] = "false"
	m["use_mrope"] = "false"
	return m
}()

func anyOf(names string) map[string]string {
	m := map[string]string{}
	for _, name := range strings.Fields(names) {
		m[name] = ""
	}
	return m
}

// noWindow is for families whose published code has no window.
func noWindow(im *importer) int {
	if _, ok := im.config.take("sliding_window"); ok {
		im.config.fail("sliding_window", "the published code of %s has no sliding window; set it to null", im.modelType)
	}
	return 0
}

// everyLayer is for families whose layers all have the window that
// sliding_window gives.
func everyLayer(im *importer) int {
	if _, ok := im.config.fields["sliding_window"]; !ok {
		im.config.fail("sliding_window", "missing, and the published default differs between versions; give a number, or null for none")
	}
	window, _ := im.config.integer("sliding_window")
	return window
}

// upperLayers is for families whose layers from max_window_layers on have a
// window, where use_sliding_window is true.
func upperLayers(im *importer) int {
	im.config.taken["sliding_window"] = true
	im.config.taken["max_window_layers"] = true
	if use, _ := im.config.boolean("use_sliding_window"); !use {
		return 0
	}
	window := im.config.required("sliding_window")
	layers := im.config.required("num_hidden_layers")
	switch first := im.config.fields["max_window_layers"]; {
	case first.any == nil:
		im.config.fail("max_window_layers", "missing")
	case string(first.raw) == "0":
	default:
		if n, ok := im.config.integer("max_window_layers"); ok && n < layers {
			im.config.fail("max_window_layers", "the first %d of %d layers have no sliding window and the rest has one: %s", n, layers, mixedLayers)
		}
		window = 0
	}
	return window
}

// byLayerTypes is for families whose layers alternate unless layer_types says
// otherwise.
func byLayerTypes(im *importer) int {
	window, _ := im.config.integer("sliding_window")
	switch {
	case im.layerKinds == nil:
		im.config.fail("sliding_window", "in %s only every second layer has it: %s", im.modelType, mixedLayers)
	case im.layerKinds[0] == fullAttention:
		window = 0
	}
	return window
}

const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// readLayerTypes notes the distinct layer_types in the file's order.
func (im *importer) readLayerTypes() {
	list, _ := takeAs[[]any](im.config, "layer_types", "a list")
	for i, v := range list {
		kind, ok := v.(string)
		if !ok || kind != fullAttention && kind != slidingAttention {
			im.config.fail("layer_types", "number %d is neither %s nor %s", i+1, fullAttention, slidingAttention)
			return
		}
		if !slices.Contains(im.layerKinds, kind) {
			im.layerKinds = append(im.layerKinds, kind)
		}
	}
}

// checkLayerTypes refuses layer_types that differ from one another, or do not
// say the same as the window.
func (im *importer) checkLayerTypes(window int) {
	want := fullAttention
	if window > 0 {
		want = slidingAttention
	}
	switch kinds := im.layerKinds; {
	case len(kinds) > 1:
		im.config.fail("layer_types", "layers are of kinds %s: %s", strings.Join(kinds, " and "), mixedLayers)
	case len(kinds) == 1 && kinds[0] != want:
		im.config.fail("layer_types", "layers are of kind %s, but by the other fields they are of kind %s", kinds[0], want)
	}
}
