package demo

import "github.com/kgen-project/kgen/gen/spec"

// smolLM2 is specs/smollm2_135m.yaml.
const smolLM2 = `
name: smollm2_135m
model: {query_heads: 9, kv_heads: 3, head_dim: 64, dtype: bf16}
rope: {type: default, theta: 100000}
cache: {page_size: 16, layout: nhd, encoding: segment}
targets: [sm_80, sm_90a]
`

// SmolLM2 is the spec of SmolLM2-135M: a small real shape.
func SmolLM2() (spec.Spec, error) { return spec.Parse("smollm2_135m.yaml", []byte(smolLM2)) }
