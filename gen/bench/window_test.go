package bench

import (
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
)

// Limits, by hand: what the masks leave of a case, over the ceilings.
func TestLimits(t *testing.T) {
	const bandwidth, product = 1e9, 1e12
	element := func(heads int) float64 { return float64(2 * heads * (32 + 32)) } // bytes of K and V, or of Q and Out, of a token
	for _, c := range []struct {
		name, text string
		masks      spec.Masks
		read, own  float64 // tokens of KV, and of queries
		pairs      float64 // of a query token and a key
	}{
		{"all", "prefill:1x100", spec.Masks{}, 100, 100, 100 * 100},
		{"causal", "prefill:1x100", spec.Masks{Causal: true}, 100, 100, 100 * 100 / 2}, // the diagonal counts half
		{"context", "extend:2x5/700", spec.Masks{Causal: true}, 1400, 10, 5 * 1400},
		// 1, 2, ... 9 keys, and then 10 each.
		{"window", "prefill:1x100", spec.Masks{Causal: true, Window: 10}, 100, 100, 45 + 91*10},
		// From the token at 10 on, one, two, three and then all four sinks.
		{"sinks", "prefill:1x100", spec.Masks{Causal: true, Window: 10, SinkTokens: 4}, 100, 100, 45 + 91*10 + 6 + 87*4},
		// The query token at 1000 sees the keys at 901 to 999.
		{"context in a window", "decode:2x1/1000", spec.Masks{Causal: true, Window: 100}, 2 * 99, 2, 2 * 99},
		{"sinks of a context", "decode:2x1/1000", spec.Masks{Causal: true, Window: 100, SinkTokens: 600}, 2 * (99 + 600), 2, 2 * (99 + 600)},
		// Query tokens at 700 to 704: the first reads from 604 on, and all see up to 699.
		{"several in a window", "extend:2x5/700", spec.Masks{Causal: true, Window: 97}, 2 * 96, 10, 2 * (96 + 95 + 94 + 93 + 92)},
		// Two sequences, 1000 tokens of a document and 30 of their own: each sees its own
		// and 70 of the document.
		{"shared in a window", "shared:2x1000+30", spec.Masks{Causal: true, Window: 100}, 70 + 2*30, 2, 2 * 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev, s := openCPU(t), small(t)
			s.Masks = c.masks
			one, err := ParseCase(c.text)
			if err != nil {
				t.Fatal(err)
			}
			rows, err := Run(t.Context(), dev, s, onCPU(t, dev, s), []Case{one}, Options{Repeats: 1, Seed: 3, ReadBandwidth: bandwidth, Product: product})
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				if want := c.read*element(2) + c.own*element(4); row.Bytes != want {
					t.Errorf("%s: %g bytes, want %g", row.Label(), row.Bytes, want)
				}
				if want := c.pairs * 2 * 4 * 64; row.Operations != want {
					t.Errorf("%s: %g operations, want %g", row.Label(), row.Operations, want)
				}
				want := max(row.Bytes/bandwidth, row.Operations/product)
				if got := row.Limit.Seconds(); got < want-2e-9 || got > want+2e-9 {
					t.Errorf("%s: limit %v, want %v", row.Label(), row.Limit, time.Duration(want*1e9))
				}
			}
		})
	}
}
