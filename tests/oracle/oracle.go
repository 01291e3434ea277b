// Package oracle is attention in float64 with explicit positions, straight
// from the definition: every query and key is rotated at its own position in
// the sequence, all keys a query sees are scored, one softmax covers them. It
// knows nothing of pages, tiles, splits, or relative angles, so it can be the
// judge of code that does.
package oracle

import (
	"math"
	"runtime"
	"sync"

	"github.com/kgen-project/kgen/runtime/rope"
)

// Problem is one sequence's attention. Shapes are written outermost first.
type Problem struct {
	QueryHeads int // a multiple of KVHeads; consecutive query heads share a KV head
	KVHeads    int
	HeadDim    int
	VHeadDim   int

	Rope       rope.Variant
	Scale      float64   // score scale, without the RoPE attention factor
	SoftCap    float64   // score = cap * tanh(score / cap); 0: none
	Window     int       // a key is seen iff query position - key position < Window; 0: no limit
	SinkTokens int       // keys at positions below this are seen whatever the window
	SinkLogits []float64 // [query heads], or nil

	Q         []float64 // [tokens][query heads][head dim], un-rotated
	Positions []int     // [tokens]
	Segments  []Segment
}

// Segment is a token range at an offset.
type Segment struct {
	Offset int       // position of token 0
	Causal int       // token l is seen by query token i iff l <= i + Causal; All: by every one
	K      []float64 // [tokens][KV heads][head dim], un-rotated
	V      []float64 // [tokens][KV heads][v head dim]
}

// All is the Causal of a segment that every query token sees.
const All = math.MaxInt32

// Result is what attention gives.
type Result struct {
	Out []float64 // [tokens][query heads][v head dim]
	LSE []float64 // [tokens][query heads]: log of the sum of exp(score) over the keys seen, without the sink logit
}

// Attend is attention by definition. A row that sees no key has output 0 and
// LSE -Inf.
func Attend(p Problem) Result {
	tokens := len(p.Positions)
	r := Result{
		Out: make([]float64, tokens*p.QueryHeads*p.VHeadDim),
		LSE: make([]float64, tokens*p.QueryHeads),
	}
	q := rotateAll(p.Rope, p.Q, p.QueryHeads, p.HeadDim, func(t int) int { return p.Positions[t] })
	scaleRotated(p.Rope, q, p.HeadDim)
	keys := make([][]float64, len(p.Segments))
	for i, s := range p.Segments {
		keys[i] = rotateAll(p.Rope, s.K, p.KVHeads, p.HeadDim, func(l int) int { return s.Offset + l })
		scaleRotated(p.Rope, keys[i], p.HeadDim)
	}
	parallel(tokens*p.QueryHeads, func(row int) {
		t, h := row/p.QueryHeads, row%p.QueryHeads
		out := r.Out[row*p.VHeadDim:][:p.VHeadDim]
		r.LSE[row] = p.attendRow(t, h, q[row*p.HeadDim:][:p.HeadDim], keys, out)
	})
	return r
}

// attendRow fills out for query token t and query head h, and returns the LSE.
func (p Problem) attendRow(t, h int, q []float64, keys [][]float64, out []float64) float64 {
	kvHead := h / (p.QueryHeads / p.KVHeads)
	var scores []float64
	var values [][]float64
	for i, s := range p.Segments {
		for l := range len(s.K) / (p.KVHeads * p.HeadDim) {
			if !p.sees(t, s, l) {
				continue
			}
			score := p.Scale * dot(q, keys[i][(l*p.KVHeads+kvHead)*p.HeadDim:])
			if p.SoftCap != 0 {
				score = p.SoftCap * math.Tanh(score/p.SoftCap)
			}
			scores = append(scores, score)
			values = append(values, s.V[(l*p.KVHeads+kvHead)*p.VHeadDim:][:p.VHeadDim])
		}
	}
	if len(scores) == 0 {
		return math.Inf(-1)
	}
	largest := math.Inf(-1)
	for _, s := range scores {
		largest = max(largest, s)
	}
	sum := 0.0
	for i, s := range scores {
		e := math.Exp(s - largest)
		sum += e
		for d, v := range values[i] {
			out[d] += e * v
		}
	}
	denominator := sum
	if p.SinkLogits != nil {
		denominator += math.Exp(p.SinkLogits[h] - largest)
	}
	for d := range out {
		out[d] /= denominator
	}
	return largest + math.Log(sum)
}

// sees says whether query token t sees token l of s.
func (p Problem) sees(t int, s Segment, l int) bool {
	if s.Causal != All && l > t+s.Causal {
		return false
	}
	position := s.Offset + l
	return p.Window == 0 || p.Positions[t]-position < p.Window || position < p.SinkTokens
}

// Rotate is K (or Q) [tokens][heads][dim] with token t rotated by positions[t],
// by the definition of the variant without its attention factor. It is what
// append stores, with the position that the encoding asks for, and what
// materialise makes of a stored token, with the angle that it still lacks.
func Rotate(v rope.Variant, x []float64, heads, dim int, positions []int) []float64 {
	return rotateAll(v, x, heads, dim, func(t int) int { return positions[t] })
}

func rotateAll(v rope.Variant, x []float64, heads, dim int, position func(int) int) []float64 {
	y := append([]float64(nil), x...)
	pairs := v.RotaryDim / 2
	if pairs == 0 {
		return y
	}
	parallel(len(x)/(heads*dim), func(t int) {
		for pair, w := range v.Frequencies[:pairs] {
			sin, cos := math.Sincos(float64(position(t)) * w)
			i, j := pair, pair+pairs
			if v.Pairing == rope.Interleaved {
				i, j = 2*pair, 2*pair+1
			}
			for h := range heads {
				row := y[(t*heads+h)*dim:][:dim]
				row[i], row[j] = row[i]*cos-row[j]*sin, row[j]*cos+row[i]*sin
			}
		}
	})
	return y
}

// scaleRotated multiplies the rotated dimensions by the attention factor.
func scaleRotated(v rope.Variant, x []float64, dim int) {
	if v.RotaryDim == 0 || v.AttentionFactor == 1 {
		return
	}
	for i := range x {
		if i%dim < v.RotaryDim {
			x[i] *= v.AttentionFactor
		}
	}
}

// Merge joins the partial results of one row: outs[i] is the output of part i
// and lses[i] its LSE, natural log. sink is the row's sink logit, -Inf for none.
func Merge(outs [][]float64, lses []float64, sink float64) (out []float64, lse float64) {
	largest := math.Inf(-1)
	for _, l := range lses {
		largest = max(largest, l)
	}
	out = make([]float64, len(outs[0]))
	if math.IsInf(largest, -1) {
		return out, largest
	}
	sum := 0.0
	for i, l := range lses {
		w := math.Exp(l - largest)
		sum += w
		for d := range out {
			out[d] += w * outs[i][d]
		}
	}
	for d := range out {
		out[d] /= sum + math.Exp(sink-largest)
	}
	return out, largest + math.Log(sum)
}

func dot(a, b []float64) float64 {
	sum := 0.0
	b = b[:len(a)]
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}

// parallel calls f(0) to f(n-1) on all processors.
func parallel(n int, f func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
}
