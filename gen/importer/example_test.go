package importer_test

import (
	"fmt"

	"github.com/kgen-project/kgen/gen/importer"
)

func ExampleImport() {
	yaml, err := importer.Import("smollm2/config.json", []byte(`{
  "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 576,
  "num_attention_heads": 9, "num_key_value_heads": 3, "rope_theta": 100000
}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", yaml)
	// Output:
	// # Made by kgen import from a config.json of model_type llama.
	//
	// name: smollm2
	//
	// model:
	//   query_heads: 9
	//   kv_heads: 3
	//   head_dim: 64
	//   dtype: bf16
	//
	// rope:
	//   type: default
	//   theta: 100000
	//   pairing: half
	//
	// cache:
	//   page_size: 16
	//   layout: nhd
	//   encoding: segment
	//
	// targets: [sm_80, sm_90a]
}

func ExampleImport_refused() {
	_, err := importer.Import("config.json", []byte(`{
  "model_type": "llama", "torch_dtype": "float32", "hidden_size": 576,
  "num_attention_heads": 9, "num_key_value_heads": 3,
  "rope_scaling": {"type": "dynamic", "factor": 2}, "attention_sinks": 4
}`))
	fmt.Println(err)
	// Output:
	// config.json:2:41: torch_dtype: a spec has bf16 and fp16, not float32; change it to the type that the model shall run in, bfloat16 or float16
	// config.json:4:28: rope_scaling.type: dynamic changes the frequencies with the sequence's length, which stored keys cannot follow; a spec cannot express it
	// config.json:4:72: attention_sinks: field attention_sinks is not known to kgen import, which cannot tell whether it changes attention; delete it if it does not
}
