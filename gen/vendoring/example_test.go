package vendoring_test

import (
	"fmt"
	"log"
	"maps"
	"slices"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/vendoring"
	"github.com/kgen-project/kgen/templates"
)

func ExampleFiles() {
	s, err := spec.Parse("small.yaml", []byte("name: small\nmodel: {query_heads: 4, kv_heads: 2, head_dim: 64}\n"+
		"rope: {type: default, theta: 10000}\nkernels: [append]\ntargets: [sm_80]\n"))
	if err != nil {
		log.Fatal(err)
	}
	plans, err := plan.All(s)
	if err != nil {
		log.Fatal(err)
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		log.Fatal(err)
	}
	cubins := map[string][]byte{emit.CubinFile(out.Kernels[0].File, "sm_80"): []byte("what package build makes")}
	files, err := vendoring.Files(vendoring.Input{Spec: s, Output: out, Cubins: cubins, Language: vendoring.C})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Println(name)
	}
	fmt.Println(vendoring.Try(s, vendoring.C))
	// Output:
	// LICENSE
	// append_sm80.cu
	// append_sm80.sm_80.cubin
	// example.c
	// manifest.json
	// small.c
	// small.h
	// vendor.json
	// cc -std=c11 -O2 -o example example.c small.c -ldl -lm && ./example
}
