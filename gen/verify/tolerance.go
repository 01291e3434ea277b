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
// scores' error alone: 10 times sqrt(2/3) u sigma, and float32's own. Beside a sink logit that
// outweighs a row's keys, its output is in proportion to their weights, and a score's error e
// makes it exp(e) times what it should be.
const (
	caseFactor = 2.0 // times eps sqrt(1 + sigma^2): a case
	rowFactor  = 4.0 // times eps sqrt(1 + sigma^2): a row
	lseFactor  = 4.0 // times eps sigma
	lseFloat32 = 1e-5
)

// Rows' errors have independent signs, so what all of a case have in common is smaller by the
// root of their number: the factor by which the outputs together are too large, and the mean of
// the LSE's errors. Values or scores one percent too large are no more than a bf16 rounding or two
// of each row; here they show. The root counts rows by their weight in the sum. On top comes a
// part of what one rounding may cost, for what rounding does not do to both sides alike. Right
// kernels come to a sixth of the first term at most.
//
// What is smaller than these bounds can't be found. With bf16, where eps is 2^-7, that is a factor
// on values below 1 +- eps/4, 0.2 percent; one on scores of deviation sigma below about
// 1 +- eps/(2 sigma), 0.4 percent at sigma 1. (fp16: an eighth of that.) A soft cap too high by a
// part x moves the LSE of a score s near it by 0.4 x s at most, whose bound is about
// 5 eps s / sqrt(head dim): 0.9 percent with 128 dims, 3 with 16. A pair of dimensions of
// frequency w turns by w n in n positions. Where that is less than a rounding, u, nobody can tell
// whether it turns: in prefill, whose cases have positions below 2048, that is so for the last pairs
// of any rule. Extend and decode have positions up to a million.
const (
	gainFactor = 1. / 4 // times eps
	lseShare   = 1. / 8 // times the bound of one row's LSE
)

// Against baked, on the same data: the pooled relative error of all cases, but
// for those apart, is at most maxRatio times baked's. The pooled errors of independent rows scatter by about
// 1/sqrt(2 rows), so fewer than ratioRows say nothing of the kernel. But rows of a case that see the same keys have
// errors in common: what the ratio differs by from case to case says how sure it is, and comes on top, ratioErrors times.
const (
	maxRatio    = 1.1
	ratioRows   = 1000
	ratioErrors = 3
)

// ratioError is the standard error of the ratio of the pooled errors of cases, by how much they differ from it. It is 0 of
// one case, and where baked is exact.
func ratioError(cases []pair) float64 {
	var measured, baked float64
	for _, c := range cases {
		measured += c.measured
		baked += c.baked
	}
	if n := float64(len(cases)); n > 1 && measured > 0 && baked > 0 {
		ratio, off := measured/baked, 0.0 // of squares, whose root's error is half of theirs in proportion
		for _, c := range cases {
			d := c.measured - ratio*c.baked
			off += d * d
		}
		return math.Sqrt(off*n/(n-1)) / baked / (2 * math.Sqrt(ratio))
	}
	return 0
}

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

func newAttendBounds(f numeric.Format, score, q, k float64, headDim int, sinks bool) attendBounds {
	sigma := score * q * k / math.Sqrt(float64(headDim))
	unit := f.Epsilon() * math.Sqrt(1+sigma*sigma)
	b := attendBounds{caseFactor * unit, rowFactor * unit, lseFactor * f.Epsilon() * sigma}
	if sinks {
		b.whole, b.row = max(b.whole, math.Expm1(b.lse*caseFactor/rowFactor)), max(b.row, math.Expm1(b.lse))
	}
	return b
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

// common is what the errors of a case's rows have in common.
type common struct {
	along, ref2, ref4 float64 // sums over the rows: of errors times references, of references squared, of the squares of those
	lse, size         float64 // sums over the rows: of the LSE's errors, of its magnitudes
	lseRows           int
}

func (c *common) addOutput(along, ref2 float64) {
	c.along += along
	c.ref2 += ref2
	c.ref4 += ref2 * ref2
}

func (c *common) addLSE(got, want float64) {
	if math.IsInf(want, 0) {
		return // a row that sees no key
	}
	c.lse += got - want
	c.size += math.Abs(want)
	c.lseRows++
}

// check holds what the rows have in common to its bounds.
func (c *common) check(bounds attendBounds, f numeric.Format) error {
	if c.ref2 > 0 {
		gain, limit := c.along/c.ref2, bounds.whole*math.Sqrt(c.ref4)/c.ref2+gainFactor*f.Epsilon()
		if !(math.Abs(gain) <= limit) {
			return wrongf("the outputs together are %.6f times the reference; at most %.3e from 1 is right", 1+gain, limit)
		}
	}
	if n := float64(c.lseRows); n > 0 {
		mean, limit := c.lse/n, bounds.lse*(1/math.Sqrt(n)+lseShare)+lseFloat32*(1+c.size/n)
		if !(math.Abs(mean) <= limit) {
			return wrongf("the LSE's mean error is %.3e; at most %.3e is right", mean, limit)
		}
	}
	return nil
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
