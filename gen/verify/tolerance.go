package verify

import (
	"math"

	"github.com/kgen-project/kgen/runtime/numeric"
)

// Where the bounds come from.
//
// Let eps be the element type's epsilon and u = eps/2 its largest rounding
// error; a rounding's error is about uniform, u/sqrt(3) in the mean square. A
// score scale*q.k takes the roundings of the rotated q and k. With q and k at
// their largest norms, the score is at most of the size
//
//	sigma = scale f^2 |q| |k| / sqrt(head dim)
//
// in the mean square over directions, and its error is at most about
// sqrt(2/3) u sigma. That is also the relative error of a softmax weight.
// Rounding the weights for the second product, and the output, adds u/sqrt(3)
// each. A row's output is a sum of values with independent signs, as is its
// error, so its relative error is expected to be
//
//	u sqrt(2/3) sqrt(1 + sigma^2) = 0.41 eps sqrt(1 + sigma^2)
//
// A whole case may have 5 times that and one row 10 times; a wrong key, angle
// or mask is far above either in cases of a few dozen keys. The LSE takes the
// scores' error alone: 10 times sqrt(2/3) u sigma, and float32's own.
const (
	caseFactor = 2.0 // times eps sqrt(1 + sigma^2): a case
	rowFactor  = 4.0 // times eps sqrt(1 + sigma^2): a row
	lseFactor  = 4.0 // times eps sigma
	lseFloat32 = 1e-5
)

// Against baked, on the same data: the pooled relative error of all cases, but
// for those apart, is at most maxRatio times baked's. The pooled errors scatter by about 1/sqrt(2 rows),
// so from ratioRows on that is a statement about the kernel, not the dice.
const (
	maxRatio  = 1.1
	ratioRows = 1000
)

// check holds one case to its own bound and to the baked kernel's error. Twice
// baked's is more than scatter explains in a case of many rows; in one of few
// rows the own bound, thinned by their number, is allowed on top.
func (m measure) check(baked measure) error {
	if r := m.relative(); !(r <= m.bound) {
		return wrongf("relative error %.3e, at most %.3e is right", r, m.bound)
	}
	limit := 2*baked.relative() + m.bound/math.Sqrt(float64(max(1, m.rows)))
	if r := m.relative(); !(r <= limit) {
		return wrongf("relative error %.3e, with baked at %.3e at most %.3e is right", r, baked.relative(), limit)
	}
	return nil
}

// attendBounds are the bounds of one attend case. score is the score scale with
// the attention factor in it; q and k are the largest norms of a row.
type attendBounds struct {
	whole, row, lse float64
}

func newAttendBounds(f numeric.Format, score, q, k float64, headDim int) attendBounds {
	sigma := score * q * k / math.Sqrt(float64(headDim))
	unit := f.Epsilon() * math.Sqrt(1+sigma*sigma)
	return attendBounds{caseFactor * unit, rowFactor * unit, lseFactor * f.Epsilon() * sigma}
}

// offLSE is how far an LSE is from what it should be; what the scores' error allows comes on
// top of float32's own. Where a row sees no key, -Inf alone is right: a finite stand-in for it
// would give keys that nobody sees a weight in a later merge.
func offLSE(got, want, scores float64) (float64, error) {
	if got == want {
		return 0, nil
	}
	if math.IsInf(want, 0) {
		return 0, wrongf("LSE %g, want %g", got, want)
	}
	e, limit := math.Abs(got-want), scores+lseFloat32*(1+math.Abs(want))
	if !(e <= limit) {
		return e, wrongf("LSE %g, want %g; at most %.3e away is right", got, want, limit)
	}
	return e, nil
}

// smallest is what rounding a row's outputs to the element type costs however small
// they are: half a unit of the smallest subnormal for each element. A large sink
// logit makes rows that small.
func smallest(f numeric.Format, dim int) float64 { return f.Value(1) / 2 * math.Sqrt(float64(dim)) }

// roundedOnce is how far an element may be from ref when float32 arithmetic on
// inputs of the given size made it and one rounding ended it: u |ref|, half a
// unit of the smallest subnormal, and 2^-20 of the inputs. A rotation in
// float32 takes an angle's cosine and sine from two table rows (six roundings)
// and two products, all below 2^-21 of the inputs together.
func roundedOnce(f numeric.Format, ref, inputs float64) float64 {
	return f.Epsilon()/2*math.Abs(ref)*(1+1e-3) + f.Value(1)/2 + math.Ldexp(inputs, -20)
}
