package cpu

import "math"

const ln2 = float32(math.Ln2)

var negativeInfinity = float32(math.Inf(-1))

// exp2 is 2^x for x <= 0, within a few units in the last place; results below
// 2^-125 are 0.
func exp2(x float32) float32 {
	if x < -125 {
		return 0
	}
	const toInteger = 3 << 22 // added and subtracted, it rounds to a whole number
	n := x + toInteger
	f := x - (n - toInteger) // -1/2 to 1/2
	// The series of exp(f ln 2): the first term left out is below 2^-27.
	const (
		c1 = math.Ln2
		c2 = c1 * math.Ln2 / 2
		c3 = c2 * math.Ln2 / 3
		c4 = c3 * math.Ln2 / 4
		c5 = c4 * math.Ln2 / 5
		c6 = c5 * math.Ln2 / 6
		c7 = c6 * math.Ln2 / 7
	)
	p := ((((((c7*f+c6)*f+c5)*f+c4)*f+c3)*f+c2)*f+c1)*f + 1
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(n)<<23)
}

// log2 is the logarithm to base 2.
func log2(x float32) float32 { return float32(math.Log2(float64(x))) }

// rowState is the online softmax of one row: exponents are scores times the
// kernel's factor, to base 2.
type rowState struct {
	maximum float32 // of the scores so far
	sum     float32 // of the weights, relative to the maximum
}

// update turns scores, -Inf for keys that are not seen, into weights rounded to
// the element type, and returns what the output so far is to be multiplied by.
func (r *rowState) update(scores []float32, factor float32, e Element) (rescale float32) {
	top := r.maximum
	for _, s := range scores {
		if s > top {
			top = s
		}
	}
	shift := top * factor
	if top == negativeInfinity { // no key seen yet, but for those whose score is NaN
		shift = 0
	}
	rescale = 1
	if top != r.maximum {
		rescale = exp2(r.maximum*factor - shift)
	}
	r.maximum = top
	added := float32(0)
	for i, s := range scores {
		w := exp2(s*factor - shift)
		added += w
		scores[i] = w
	}
	e.round(scores)
	r.sum = r.sum*rescale + added
	return rescale
}

// logSumExp2 is the log to base 2 of the row's sum of exponentials, -Inf where
// no key was seen.
func (r rowState) logSumExp2(factor float32) float32 {
	if r.sum == 0 {
		return negativeInfinity
	}
	return r.maximum*factor + log2(r.sum)
}

// normaliser is what the row's output is multiplied by at the end, 0 where no
// key was seen. sinkExponent is the log to base 2 of the weight of a learned
// sink; -Inf: none.
func (r rowState) normaliser(factor, sinkExponent float32) float32 {
	if r.sum == 0 {
		return 0
	}
	if sinkExponent == negativeInfinity {
		return 1 / r.sum
	}
	// In float64: the sink may outweigh every key by far.
	sink := math.Exp2(float64(sinkExponent) - float64(r.maximum*factor))
	return float32(1 / (float64(r.sum) + sink))
}
