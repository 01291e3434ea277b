package verify_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cpu"
)

// The CPU backend's decode, held to float64. Generated kernels come from
// [verify.Generated] in the place of [verify.CPU], on a GPU or on the emulator.
func ExampleRun() {
	s, err := spec.Parse("small.yaml", []byte("name: small\nmodel: {query_heads: 4, kv_heads: 2, head_dim: 64}\nrope: {type: default, theta: 10000}\n"))
	if err != nil {
		log.Fatal(err)
	}
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	report, err := verify.Run(context.Background(), dev, s, verify.CPU(dev), verify.Options{
		Kinds: []spec.Kind{spec.Decode}, Cases: 3, Seed: 1, Work: 1e5,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, row := range report.Rows {
		fmt.Println(row.Kind, row.Encoding, row.Cases, "cases,", row.Failed, "failed")
	}
	// Output: decode segment 3 cases, 0 failed
}
