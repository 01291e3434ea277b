package bench_test

import (
	"testing"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/spec"
)

func TestCasesReadBack(t *testing.T) {
	for _, want := range append(bench.Usual(), bench.Sweep()...) {
		got, err := bench.ParseCase(want.String())
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", want, got, err)
		}
	}
	for _, text := range []string{"", "prefill", "prefill:1", "prefill:0x5", "prefill:1x4/8", "extend:1x64", "decode:1x1/", "merge:1x1/8", "extend:axb/c", "decode:1x1/99999999999",
		"shared:2x8", "shared:2x8+0", "shared:2x8+9-3", "zipf:1.07:64/1000x512x5", "zipf:-1:64/1000x512x5+8", "zipf:x:64/1000x512x5+8",
		"zipf:1:64/4x512x5+8", "zipf:64/1000x512x5+8", "zipf:NaN:64/1000x512x5+8"} {
		if c, err := bench.ParseCase(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, c)
		}
	}
}

// The counts of the design's table: 32 query heads, 8 KV heads, head dim 128.
func TestCounts(t *testing.T) {
	m := spec.Model{QueryHeads: 32, KVHeads: 8, HeadDim: 128, VHeadDim: 128}
	decode := bench.Case{Kind: spec.Decode, Batch: 32, Query: 1, Context: 8192}
	if got, want := decode.Bytes(m), 32*(8192*8*256+32*256)*2.0; got != want {
		t.Errorf("%s: %g bytes, want %g", decode, got, want)
	}
	prefill := bench.Case{Kind: spec.Prefill, Batch: 1, Query: 16384, Context: 16384}
	if got, want := prefill.Operations(m, true), 2*16384.0*16384*32*128; got != want {
		t.Errorf("%s: %g operations, want %g", prefill, got, want)
	}
	if got, want := prefill.Operations(m, false), 4*16384.0*16384*32*128; got != want {
		t.Errorf("%s, not causal: %g operations, want %g", prefill, got, want)
	}
}
