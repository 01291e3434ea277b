package oracle_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/tests/oracle"
)

func ExampleAttend() {
	// One query and two keys: scores 0 and ln 3, so weights 1/4 and 3/4.
	r := oracle.Attend(oracle.Problem{
		QueryHeads: 1, KVHeads: 1, HeadDim: 1, VHeadDim: 2, Scale: 1,
		Q:         []float64{1},
		Positions: []int{1},
		Segments:  []oracle.Segment{{Causal: oracle.All, K: []float64{0, math.Log(3)}, V: []float64{4, 0, 0, 4}}},
	})
	fmt.Printf("%.3f %.3f\n", r.Out, math.Exp(r.LSE[0]))
	// Output: [1.000 3.000] 4.000
}

func TestRotate(t *testing.T) {
	half := rope.Variant{Pairing: rope.Half, RotaryDim: 4, Frequencies: []float64{math.Pi / 2, math.Pi}, AttentionFactor: 7}
	interleaved := half
	interleaved.Pairing = rope.Interleaved
	x := []float64{1, 2, 3, 4, 5} // dim 5: the last is not rotated
	for _, c := range []struct {
		name     string
		variant  rope.Variant
		position int
		want     []float64
	}{
		{"none", rope.Variant{}, 3, x},
		{"half, position 0", half, 0, x},
		{"half: (1,3) by 90 degrees, (2,4) by 180", half, 1, []float64{-3, -2, 1, -4, 5}},
		{"half, backwards", half, -1, []float64{3, -2, -1, -4, 5}},
		{"interleaved: (1,2) by 90 degrees, (3,4) by 180", interleaved, 1, []float64{-2, 1, -3, -4, 5}},
	} {
		got := oracle.Rotate(c.variant, x, 1, 5, []int{c.position})
		if d := distance(got, c.want); d > 1e-12 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if x[0] != 1 {
		t.Error("Rotate changed its input")
	}
}

// Which keys a query sees, by a single key whose visibility decides between
// LSE = score 0 and LSE = -Inf.
func TestMasks(t *testing.T) {
	for _, c := range []struct {
		name                       string
		query, position, offset, l int
		causal, window, sinkTokens int
		want                       bool
	}{
		{"all", 0, 0, 100, 0, oracle.All, 0, 0, true},
		{"causal, itself", 0, 5, 5, 0, 0, 0, 0, true},
		{"causal, the next", 0, 5, 5, 1, 0, 0, 0, false},
		{"causal goes by order, not by position", 2, 0, 1000, 2, 0, 0, 0, true},
		{"causal, earlier own tokens", 0, 9, 5, 3, 3, 0, 0, true},
		{"causal, one more", 0, 9, 5, 4, 3, 0, 0, false},
		{"window, inside", 0, 9, 6, 0, oracle.All, 4, 0, true},
		{"window, outside", 0, 9, 5, 0, oracle.All, 4, 0, false},
		{"window, a later position", 0, 9, 20, 0, oracle.All, 4, 0, true},
		{"sink token", 0, 9, 1, 0, oracle.All, 4, 2, true},
		{"past the sink tokens", 0, 9, 2, 0, oracle.All, 4, 2, false},
		{"a sink token obeys causality", 0, 0, 0, 1, 0, 4, 2, false},
	} {
		k := make([]float64, c.l+1)
		for i := range k {
			k[i] = -1000 // far below: only the last key counts
		}
		k[c.l] = 0
		positions := make([]int, c.query+1)
		positions[c.query] = c.position
		r := oracle.Attend(oracle.Problem{
			QueryHeads: 1, KVHeads: 1, HeadDim: 1, VHeadDim: 1, Scale: 1,
			Window: c.window, SinkTokens: c.sinkTokens,
			Q: onesLike(positions), Positions: positions,
			Segments: []oracle.Segment{{Offset: c.offset, Causal: c.causal, K: k, V: make([]float64, len(k))}},
		})
		if got := r.LSE[c.query] == 0; got != c.want {
			t.Errorf("%s: seen %v (LSE %g), want %v", c.name, got, r.LSE[c.query], c.want)
		}
	}
}

func TestNoKeys(t *testing.T) {
	p := random(rand.New(rand.NewPCG(1, 2)), 3, nil)
	p.SinkLogits = []float64{0, 1, 2, 3}
	r := oracle.Attend(p)
	for i, l := range r.LSE {
		if !math.IsInf(l, -1) {
			t.Errorf("row %d: LSE %g", i, l)
		}
	}
	if d := distance(r.Out, make([]float64, len(r.Out))); d != 0 {
		t.Errorf("output %g away from 0", d)
	}
}

func TestSinkLogitAndSoftCap(t *testing.T) {
	p := oracle.Problem{
		QueryHeads: 1, KVHeads: 1, HeadDim: 1, VHeadDim: 1, Scale: 2,
		Q: []float64{3}, Positions: []int{0},
		Segments: []oracle.Segment{{Causal: oracle.All, K: []float64{5}, V: []float64{8}}},
	}
	p.SinkLogits = []float64{30 + math.Log(3)} // score 30: the sink weighs three times the key
	r := oracle.Attend(p)
	if math.Abs(r.Out[0]-2) > 1e-12 || math.Abs(r.LSE[0]-30) > 1e-12 {
		t.Errorf("sink logit: out %g, LSE %g; want 2, 30", r.Out[0], r.LSE[0])
	}
	p.SinkLogits, p.SoftCap = nil, 10
	if r := oracle.Attend(p); math.Abs(r.LSE[0]-10*math.Tanh(3)) > 1e-12 {
		t.Errorf("soft cap: LSE %g, want %g", r.LSE[0], 10*math.Tanh(3))
	}
}

// The attention factor multiplies the rotated dimensions of query and key.
func TestAttentionFactor(t *testing.T) {
	p := oracle.Problem{
		QueryHeads: 1, KVHeads: 1, HeadDim: 3, VHeadDim: 1, Scale: 1,
		Rope: rope.Variant{Pairing: rope.Half, RotaryDim: 2, Frequencies: []float64{1}, AttentionFactor: 3},
		Q:    []float64{1, 1, 1}, Positions: []int{4},
		Segments: []oracle.Segment{{Offset: 4, Causal: oracle.All, K: []float64{1, 1, 1}, V: []float64{1}}},
	}
	if r := oracle.Attend(p); math.Abs(r.LSE[0]-(9+9+1)) > 1e-12 {
		t.Errorf("LSE %g, want 19", r.LSE[0])
	}
}

// Attention depends on relative positions alone, and splits merge to the whole.
func TestShiftAndMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	p := random(rng, 5, []int{7, 1, 20})
	p.SinkLogits = []float64{0.5, -1, 0, 2}
	whole := oracle.Attend(p)

	shifted := p
	shifted.Positions = append([]int(nil), p.Positions...)
	shifted.Segments = append([]oracle.Segment(nil), p.Segments...)
	for i := range shifted.Positions {
		shifted.Positions[i] += 1000
	}
	for i := range shifted.Segments {
		shifted.Segments[i].Offset += 1000
	}
	if d := distance(oracle.Attend(shifted).Out, whole.Out); d > 1e-9 {
		t.Errorf("a common shift moved the output by %g", d)
	}

	parts := make([]oracle.Result, len(p.Segments))
	for i, s := range p.Segments {
		one := p
		one.SinkLogits = nil
		one.Segments = []oracle.Segment{s}
		parts[i] = oracle.Attend(one)
	}
	for row := range whole.LSE {
		var outs [][]float64
		var lses []float64
		for _, part := range parts {
			outs = append(outs, part.Out[row*p.VHeadDim:][:p.VHeadDim])
			lses = append(lses, part.LSE[row])
		}
		out, lse := oracle.Merge(outs, lses, p.SinkLogits[row%p.QueryHeads])
		if d := distance(out, whole.Out[row*p.VHeadDim:][:p.VHeadDim]); d > 1e-12 || math.Abs(lse-whole.LSE[row]) > 1e-12 {
			t.Errorf("row %d: the merged parts are %g and %g away", row, d, lse-whole.LSE[row])
		}
	}
}

// Query heads 2g and 2g+1 of a group of two are those of KV head g: of its keys, whose
// only score is g, and of its values.
func TestGroup(t *testing.T) {
	p := oracle.Problem{
		QueryHeads: 4, KVHeads: 2, HeadDim: 1, VHeadDim: 1, Scale: 1, Q: []float64{1, 1, 1, 1}, Positions: []int{0},
		Segments: []oracle.Segment{{Causal: oracle.All, K: []float64{0, 1}, V: []float64{0, 1}}},
	}
	r := oracle.Attend(p)
	for h := range p.QueryHeads {
		want := float64(h / 2)
		if k, v := r.LSE[h], r.Out[h]; math.Abs(k-want) > 1e-12 || math.Abs(v-want) > 1e-12 {
			t.Errorf("query head %d read K of KV head %g and V of %g, want %g", h, k, v, want)
		}
	}
}

// random is a problem of two KV heads and four query heads with segments of
// the given lengths.
func random(rng *rand.Rand, tokens int, lengths []int) oracle.Problem {
	p := oracle.Problem{
		QueryHeads: 4, KVHeads: 2, HeadDim: 8, VHeadDim: 6, Scale: 0.3,
		Rope:      rope.Variant{Pairing: rope.Half, RotaryDim: 6, Frequencies: []float64{1, 0.3, 0.01}, AttentionFactor: 1.2},
		Q:         normal(rng, tokens*4*8),
		Positions: make([]int, tokens),
	}
	for i := range p.Positions {
		p.Positions[i] = rng.IntN(100)
	}
	for _, n := range lengths {
		p.Segments = append(p.Segments, oracle.Segment{
			Offset: rng.IntN(100), Causal: oracle.All, K: normal(rng, n*2*8), V: normal(rng, n*2*6),
		})
	}
	return p
}

func normal(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

func onesLike(p []int) []float64 {
	x := make([]float64, len(p))
	for i := range x {
		x[i] = 1
	}
	return x
}

func distance(a, b []float64) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	d := 0.0
	for i := range a {
		d = max(d, math.Abs(a[i]-b[i]))
	}
	return d
}
