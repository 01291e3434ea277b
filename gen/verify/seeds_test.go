package verify

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/tests/testutil"
)

// seeded draws small cases of a spec.
func seeded(s spec.Spec) *bench {
	return &bench{spec: s, format: numeric.BF16, size: size{work: 5e4, keys: 256, tokens: 24, holders: 30}}
}

// A seed means the same cases as when the tables of README.md were made. What is drawn
// for a mask or an element type that a shipped spec has not must not move its cases.
func TestSeedsOfShippedSpecs(t *testing.T) {
	t.Parallel()
	tile := spec.Tile{Rows: 64, Keys: 64}
	for name, want := range map[string]uint64{"llama2_7b": 0xcc36f88d3406021, "llama3": 0x24c02c57aea0a712, "smollm2_135m": 0x7f13758a9ab3b2b2} {
		s := testutil.Spec(t, "../../specs/"+name+".yaml")
		b := seeded(s)
		sum := fnv.New64a()
		for n := range uint64(4) {
			for _, kind := range spec.TiledKinds {
				d := b.dice(rand.New(rand.NewPCG(1, n)), tile.Rows/s.Model.Group(), tile.Keys)
				c := d.attendCase(kind, tile)
				fmt.Fprint(sum, c.kvHeads, c.chunks, c.sequences, c.tokens, c.q, c.qStride, c.outStride, c.splitTokens, c.maxItems,
					c.padding, c.bitwise, c.scheduled, c.withLSE, c.alone, c.sharp, c.layoutSeed, d.Uint64())
			}
			fmt.Fprint(sum, b.dice(rand.New(rand.NewPCG(2, n))).appendCase())
			fmt.Fprint(sum, b.dice(rand.New(rand.NewPCG(3, n))).mergeCase())
			fmt.Fprint(sum, b.dice(rand.New(rand.NewPCG(4, n))).materialiseCase())
		}
		if got := sum.Sum64(); got != want {
			t.Errorf("%s: the cases are other ones: %#x, want %#x", name, got, want)
		}
	}
}

// Whatever a spec's scale, its scores are no further apart than by the default one; those of a scale too
// large for that are all taken for far apart.
func TestScoresOfLargeScales(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scale float64
		sharp bool // all cases
	}{{0.001, false}, {0.5, false}, {2, false}, {-2, false}, {5, false}, {1000, true}} {
		s := testutil.Spec(t, "../../specs/llama3.yaml")
		s.Scale = c.scale
		b := seeded(s)
		for n := range uint64(20) {
			d := b.dice(rand.New(rand.NewPCG(5, n)))
			drawn, most := d.attendCase(spec.Prefill, spec.Tile{Rows: 64, Keys: 64}), 0.0
			for _, q := range drawn.q {
				most = max(most, math.Abs(q))
			}
			if scores := most * math.Abs(c.scale) * math.Sqrt(float64(s.Model.HeadDim)); !drawn.sharp && scores > 6*4 {
				t.Errorf("scale %v, case %d: scores of %.3g and more in a case that is pooled", c.scale, n, scores)
			}
			if c.sharp && (!drawn.sharp || most < 1./64) {
				t.Errorf("scale %v, case %d: sharp is %v, queries up to %.3g", c.scale, n, drawn.sharp, most)
			}
		}
	}
}
