package bench_test

import (
	"fmt"
	"log"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/spec"
)

// What a case reads, writes and multiplies at the least, which a device's ceilings
// turn into the time that its own is shown beside.
func ExampleParseCase() {
	c, err := bench.ParseCase("decode:8x1/8192")
	if err != nil {
		log.Fatal(err)
	}
	m := spec.Model{QueryHeads: 32, KVHeads: 8, HeadDim: 128, VHeadDim: 128, DType: spec.BF16}
	fmt.Printf("%d sequences: %.0f MB, %.1f GFLOP\n", c.Batch, c.Bytes(m)/1e6, c.Operations(m, true)/1e9)
	// Output: 8 sequences: 269 MB, 1.1 GFLOP
}
