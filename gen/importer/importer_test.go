package importer

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/gen/spec"
)

var update = flag.Bool("update", false, "write the golden files anew")

func read(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestImport holds what testdata/x.json gives to x.yaml.
func TestImport(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			got, err := Import(name+"/config.json", read(t, file))
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".json") + ".yaml"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(read(t, golden)), string(got)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if _, err := spec.Parse(golden, got); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestImportGivesTheShippedSpecs imports the models of specs/ and compares
// identities.
func TestImportGivesTheShippedSpecs(t *testing.T) {
	for model, shipped := range map[string]string{"llama_3_1_8b": "llama3", "llama_2_7b": "llama2_7b", "smollm2_135m": "smollm2_135m"} {
		yaml, err := Import("config.json", read(t, "testdata/"+model+".json"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := spec.Parse("got.yaml", yaml)
		if err != nil {
			t.Fatal(err)
		}
		file := "../../specs/" + shipped + ".yaml"
		want, err := spec.Parse(file, read(t, file))
		if err != nil {
			t.Fatal(err)
		}
		got.Name = want.Name
		if model == "llama_2_7b" { // published in float16
			got.Model.DType = want.Model.DType
		}
		if spec.Digest(got) != spec.Digest(want) {
			t.Errorf("%s is not %s:\n%s", model, file, yaml)
		}
	}
}

// change replaces one line's worth of a config.
func change(t *testing.T, text, old, replacement string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q is there %d times", old, strings.Count(text, old))
	}
	return strings.Replace(text, old, replacement, 1)
}

func TestImportRefuses(t *testing.T) {
	tests := []struct{ name, base, old, replacement, want string }{
		{"unknown field", "llama_3_1_8b", `"use_cache"`, `"attention_sinks": 4, "use_cache"`, "attention_sinks: field attention_sinks is not known to kgen import"},
		{"unknown rope field", "llama_3_1_8b", `"factor": 8.0`, `"factor": 8.0, "twist": 1`, "rope_scaling.twist: field rope_scaling.twist is not known"},
		{"unknown family", "llama_3_1_8b", `"llama",`, `"lama",`, `model_type: "lama": it is not known to kgen import, which knows gemma, gemma2, llama`},
		{"a text model inside", "llama_3_1_8b", `"llama",`, `"mistral3", "text_config": {"model_type": "mistral"},`,
			"qwen3_moe; where its text_config is of one of those, import that object by itself"},
		{"gpt-oss", "llama_3_1_8b", `"llama",`, `"gpt_oss",`, `model_type: "gpt_oss": its layers differ in their attention`},
		{"other architecture", "llama_3_1_8b", "LlamaForCausalLM", "DeciLMForCausalLM", "architectures: DeciLMForCausalLM is not LlamaForCausalLM"},
		{"own code", "llama_3_1_8b", `"use_cache"`, `"auto_map": {}, "use_cache"`, "auto_map: the model brings code of its own"},
		{"float32", "llama_3_1_8b", "bfloat16", "float32", "torch_dtype: a spec has bf16 and fp16, not float32"},
		{"fp8", "llama_3_1_8b", "bfloat16", "float8_e4m3", `torch_dtype: "float8_e4m3" is neither`},
		{"head dim 80", "llama_3_1_8b", `"hidden_size": 4096`, `"hidden_size": 2560`, "hidden_size: as model.head_dim in a spec: 80 is not in this version"},
		{"head dim 512", "qwen3_8b", `"head_dim": 128`, `"head_dim": 512`, "head_dim: as model.head_dim in a spec: 512 is not in this version"},
		{"no head dim", "qwen3_8b", `"head_dim": 128`, `"head_dim": null`, "head_dim: missing"},
		{"hidden size", "llama_3_1_8b", `"hidden_size": 4096`, `"hidden_size": 4095`, "hidden_size: 4095 is not a multiple"},
		{"heads", "llama_3_1_8b", `"num_key_value_heads": 8`, `"num_key_value_heads": 5`, "num_key_value_heads: as model.kv_heads in a spec: 5 does not divide"},
		{"no KV heads", "mistral_7b_v03", `"num_key_value_heads": 8,`, ``, "num_key_value_heads: missing"},
		{"text for a number", "llama_3_1_8b", `"num_attention_heads": 32`, `"num_attention_heads": "32"`, `num_attention_heads: want a whole number, found "32"`},
		{"fraction", "llama_3_1_8b", `"num_attention_heads": 32`, `"num_attention_heads": 32.5`, "num_attention_heads: 32.5 is not a whole number"},
		{"huge number", "llama_3_1_8b", "500000.0", "1e999", "rope_theta: 1e999 is too large"},
		{"dynamic", "llama_3_1_8b", `"llama3"`, `"dynamic"`, "rope_scaling.rope_type: dynamic changes the frequencies"},
		{"mrope", "llama_3_1_8b", `"llama3"`, `"mrope"`, "rope_scaling.rope_type: mrope gives a token several positions"},
		{"unknown rule", "llama_3_1_8b", `"llama3"`, `"llama4"`, `rope_scaling.rope_type: "llama4" is not known to kgen import, which knows default`},
		{"no factor", "llama_3_1_8b", `"factor": 8.0,`, ``, "rope_scaling.factor: as rope.factor in a spec: missing"},
		{"no original", "llama_3_1_8b", ",\n    \"original_max_position_embeddings\": 8192", ``, "config.json:26:19: rope_scaling.original_max_position_embeddings: as rope.original_max_position in a spec: missing"},
		{"two types", "llama_3_1_8b", `"factor": 8.0,`, `"factor": 8.0, "type": "yarn",`, `rope_scaling.type: "yarn" differs from rope_type, "llama3"`},
		{"two thetas", "llama_3_2_1b_new_style", `"hidden_size"`, `"rope_theta": 10000, "hidden_size"`, "rope_parameters.rope_theta: 500000 differs from rope_theta outside, 10000"},
		{"no theta", "mixtral_8x7b", `"rope_theta": 1000000.0,`, ``, "rope_theta: missing"},
		{"partial rotation", "llama_3_1_8b", `"use_cache"`, `"partial_rotary_factor": 0.5, "use_cache"`, "partial_rotary_factor: the published code of llama rotates all"},
		{"few factors", "phi3_longrope", "1.0,\n      1.5,\n", "1.0,\n", "rope_scaling.long_factor: as rope.long_factor in a spec: it has 47 numbers and needs 48"},
		{"mscale in longrope", "phi3_longrope", `"type": "longrope"`, `"type": "longrope", "short_mscale": 1.1`, "rope_scaling.short_mscale: field"},
		{"window of llama", "llama_3_1_8b", `"use_cache"`, `"sliding_window": 4096, "use_cache"`, "sliding_window: the published code of llama has no sliding window"},
		{"window of mistral", "mistral_7b_v01", `"sliding_window": 4096,`, ``, "sliding_window: missing"},
		{"window of some layers", "qwen2_5_7b", `"use_sliding_window": false`, `"use_sliding_window": true, "num_labels": 2`, ""},
		{"windows on upper layers", "qwen2_5_7b", "\"max_window_layers\": 28,\n  \"sliding_window\": 131072,\n  \"use_sliding_window\": false", `"max_window_layers": 20, "sliding_window": 4096, "use_sliding_window": true`, "max_window_layers: the first 20 of 28 layers have no sliding window"},
		{"gemma2 alternates", "gemma2_all_full", "\"layer_types\": [\n    \"full_attention\",\n    \"full_attention\"\n  ],", ``, "sliding_window: in gemma2 only every second layer has it"},
		{"mixed layers", "gemma2_all_full", "\"full_attention\",", `"sliding_attention",`, "layer_types: layers are of kinds sliding_attention and full_attention"},
		{"layers against window", "mistral_7b_v01", `"sliding_window": 4096`, `"sliding_window": 4096, "layer_types": ["full_attention"]`, "layer_types: layers are of kind full_attention, but by the other fields"},
		{"chunked layers", "llama_3_1_8b", `"use_cache"`, `"layer_types": ["chunked_attention"], "use_cache"`, "layer_types: number 1 is neither"},
		{"full_attn_mod", "phi3_longrope", `"full_attn_mod": 1`, `"full_attn_mod": 2`, "full_attn_mod: 2 is not to be expressed"},
		{"interleaved", "smollm2_135m", `"rope_interleaved": false`, `"rope_interleaved": true`, "rope_interleaved: true is not to be expressed"},
		{"quantised cache", "llama_3_1_8b", `"use_cache"`, `"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}, "use_cache"`, "quantization_config: kv_cache_scheme: a quantised KV cache"},
		{"NoPE layers", "llama_3_1_8b", `"llama",`, `"smollm3",`, `model_type: "smollm3": some of its layers have no RoPE`},
		{"two original contexts", "llama_3_1_8b", `"use_cache"`, `"original_max_position_embeddings": 4096, "use_cache"`,
			"rope_scaling.original_max_position_embeddings: 8192 differs from original_max_position_embeddings outside, 4096"},
		{"two stretches", "phi3_longrope", `"type": "longrope"`, `"type": "longrope", "factor": 16`,
			"rope_scaling.factor: 16 differs from max_position_embeddings over original_max_position_embeddings, 32"},
		{"one stretch", "phi3_longrope", `"type": "longrope"`, `"type": "longrope", "factor": 32`, ""},
		{"no attention factor", "qwen2_5_7b_yarn", `"factor": 4.0`, `"factor": 4.0, "attention_factor": 0`, "rope_scaling.attention_factor: 0 is not above 0"},
		{"soft cap by default", "gemma2_all_full", `"attn_logit_softcapping": 50.0,`, ``, "attn_logit_softcapping: missing, and the published code has a default; give a number, or null for none"},
		{"no soft cap", "gemma2_all_full", `"attn_logit_softcapping": 50.0,`, `"attn_logit_softcapping": null,`, ""},
		{"soft cap of 0", "gemma2_all_full", `"attn_logit_softcapping": 50.0,`, `"attn_logit_softcapping": 0,`, "attn_logit_softcapping: 0 is not above 0"},
		{"query scalar of 0", "gemma2_all_full", `"query_pre_attn_scalar": 144`, `"query_pre_attn_scalar": 0`, "query_pre_attn_scalar: 0 is not above 0"},
		{"a negative query scalar", "gemma2_all_full", `"query_pre_attn_scalar": 144`, `"query_pre_attn_scalar": -256`, "query_pre_attn_scalar: -256 is not above 0"},
		{"no query scalar", "gemma2_all_full", `"query_pre_attn_scalar": 144`, `"query_pre_attn_scalar": null`, "query_pre_attn_scalar: missing"},
		{"windows on no known layers", "qwen2_5_7b", "\"max_window_layers\": 28,\n  \"sliding_window\": 131072,\n  \"use_sliding_window\": false", `"max_window_layers": null, "sliding_window": 4096, "use_sliding_window": true`, "max_window_layers: missing"},
		{"twice", "llama_3_1_8b", `"use_cache"`, `"model_type": "llama", "use_cache"`, "model_type: given twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := change(t, string(read(t, "testdata/"+tt.base+".json")), tt.old, tt.replacement)
			yaml, err := Import("config.json", []byte(text))
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var errs spec.Errors
			if !errors.As(err, &errs) || yaml != nil {
				t.Fatalf("got %v and\n%s", err, yaml)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got\n%v\nwant %s", err, tt.want)
			}
			for _, e := range errs {
				if e.Line < 1 || e.Col < 1 {
					t.Errorf("%v has no place", e)
				}
			}
		})
	}
}

// A RoPE rule that can't be read is one error: its parameters are not called unknown.
func TestImportOfUnreadableRule(t *testing.T) {
	for _, replacement := range []string{`"dynamic"`, `"mrope"`, `"llama4"`, `"llama3", "type": "yarn"`} {
		text := change(t, string(read(t, "testdata/llama_3_1_8b.json")), `"llama3"`, replacement)
		_, err := Import("config.json", []byte(text))
		var errs spec.Errors
		if !errors.As(err, &errs) || len(errs) != 1 {
			t.Errorf("%s: got %v", replacement, err)
		}
	}
}

func TestImportOfWhatIsNoConfig(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "config.json:1:1: file: it is empty",
		"\n":                             "config.json:1:1: file: it is empty",
		"\xff":                           "config.json:1:1: file: it is not UTF-8 text",
		"[1]\n":                          "config.json:1:1: file: want a JSON object, found [1]",
		"\ufeff7":                        "config.json:1:1: file: want a JSON object, found 7",
		"{\n \"a\": }":                   "config.json:2:7: file: not valid JSON: invalid character '}' looking for beginning of value",
		"{\"a\": 1":                      "config.json:1:7: file: not valid JSON: unexpected end of JSON input",
		"{} {}":                          "config.json:1:4: file: not valid JSON: invalid character '{' after top-level value",
		"{}":                             "config.json:1:1: model_type: missing; kgen import knows gemma, gemma2, llama, mistral, mixtral, phi3, qwen2, qwen3, qwen3_moe",
		"{\"model_type\":\n 7}":          "config.json:2:2: model_type: want a text, found 7",
		strings.Repeat("{\"a\":", 50000): "config.json:1:",
		strings.Repeat(" ", maxBytes+1):  "config.json:1:1: file: it has 1048577 bytes; a config.json has at most 1048576",
	} {
		_, err := Import("config.json", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.HasSuffix(err.Error(), "\n") {
			t.Errorf("%.40q: got %v, want %s", text, err, want)
		}
	}
}

func TestNames(t *testing.T) {
	config := string(read(t, "testdata/llama_3_1_8b.json"))
	for _, tt := range []struct{ file, path, want string }{
		{"config.json", "", "llama"},
		{"models/Llama-3.1-8B/config.json", "", "llama_3_1_8b"},
		{"a/config.json", "meta-llama/Meta-Llama-3.1-8B", "meta_llama_3_1_8b"},
		{"a/config.json", "/scratch/run/7", "a"},
		{"../config.json", "", "llama"},
		{"7b/config.json", "", "model_7b"},
		{"func/config.json", "", "llama"},
		{strings.Repeat("x", 60) + "/config.json", "", strings.Repeat("x", 41)},
	} {
		text := change(t, config, `"use_cache"`, `"_name_or_path": "`+tt.path+`", "use_cache"`)
		yaml, err := Import(tt.file, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(yaml), "\nname: "+tt.want+"\n") {
			t.Errorf("%s, %q: want name %s in\n%s", tt.file, tt.path, tt.want, yaml)
		}
	}
}

func FuzzImport(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		f.Add(read(f, file))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		yaml, err := Import("config.json", data)
		var errs spec.Errors
		if err != nil && (!errors.As(err, &errs) || len(errs) == 0) {
			t.Fatalf("%T is not Errors: %v", err, err)
		}
		if err == nil {
			if _, err := spec.Parse("x.yaml", yaml); err != nil {
				t.Fatal(err)
			}
		}
	})
}
