package emit_test

import (
	"fmt"
	"log"
	"maps"
	"os"
	"slices"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/templates"
)

func Example() {
	const file = "testdata/tiny/tiny.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	s, err := spec.Parse(file, text)
	if err != nil {
		log.Fatal(err)
	}
	plans := []plan.Plan{
		{Kind: spec.Prefill, Family: plan.SM80, Targets: s.Targets, Rows: 64, Keys: 32, Stages: 2, Warps: 4, Shared: 24576},
		{Kind: spec.Merge, Family: plan.SM80, Targets: s.Targets, Warps: 8},
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		log.Fatal(err)
	}
	// A build completes the manifest here, with what the compiler reports.
	if out.Files[s.Name+".go"], err = emit.Bindings(s, out.Manifest, false); err != nil {
		log.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(out.Files)) {
		fmt.Println(name)
	}
	fmt.Println(out.Kernels[0].Entry)
	// Output:
	// merge_sm80.cu
	// prefill_sm80_r64k32s2w4.cu
	// tiny.go
	// tiny.h
	// kgen_tiny_prefill_sm80_r64k32s2w4
}
