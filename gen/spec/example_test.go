package spec_test

import (
	"fmt"

	"github.com/kgen-project/kgen/gen/spec"
)

func ExampleParse() {
	s, err := spec.Parse("small.yaml", []byte(`
name: small
model: {query_heads: 32, kv_heads: 8, head_dim: 128}
rope: {type: default, theta: 10000}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Name, s.Model.Group(), s.Cache.Encoding, s.Targets)
	// Output: small 4 segment [sm_80 sm_90a]
}

func ExampleParse_errors() {
	_, err := spec.Parse("wrong.yaml", []byte(`
name: wrong
model: {query_heads: 32, kv_heads: 5, head_dim: 128}
rope: {type: lama3, theta: ten}
`))
	fmt.Println(err)
	// Output:
	// wrong.yaml:3:36: model.kv_heads: 5 does not divide query_heads, 32
	// wrong.yaml:4:14: rope.type: "lama3" is not one of none, default, linear, ntk, yarn, llama3, longrope; did you mean llama3?
	// wrong.yaml:4:28: rope.theta: want a number above 0, found "ten"
}

func ExampleSpec_ErrorAt() {
	s, err := spec.Parse("big.yaml", []byte(`
name: big
model: {query_heads: 32, kv_heads: 8, head_dim: 128}
rope: {type: none}
tiles:
  prefill: {rows: 512, keys: 512}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.ErrorAt("tiles.prefill", "the tile does not fit in shared memory"))
	// Output: big.yaml:6:12: tiles.prefill: the tile does not fit in shared memory
}
