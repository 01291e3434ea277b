package rope

import (
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
)

// lowRows is the number of positions that the low level of a table covers.
const lowRows = 1 << abi.RopeLowBits

// HighRows is the number of rows of the high level of the variant's table.
func (v Variant) HighRows() int { return (v.MaxPosition + lowRows - 1) / lowRows }

// Table returns the variant's angles as (cos, sin) pairs, each computed in
// float64 and rounded once to float32:
//
//	[lowRows + HighRows][RotaryDim/2][2]
//
// Row l of the first lowRows = 1<<abi.RopeLowBits is position l; row h of the
// rest is position h<<abi.RopeLowBits. The angle of a position p >= 0 is the
// sum of the angles of rows p mod lowRows and p div lowRows, by
//
//	cos(a+b) = cos a cos b - sin a sin b
//	sin(a+b) = sin a cos b + cos a sin b
//
// and that of -p has the sine's sign flipped. The attention factor is not in
// the table; see [Variant.ScoreFactors]. The table of a variant that rotates
// nothing is empty.
func Table(v Variant) []float32 {
	if v.RotaryDim == 0 {
		return nil
	}
	rows := lowRows + v.HighRows()
	table := make([]float32, 0, rows*v.RotaryDim)
	for row := range rows {
		position := row
		if row >= lowRows {
			position = (row - lowRows) << abi.RopeLowBits
		}
		for _, w := range v.Frequencies {
			sin, cos := sincos(float64(position), w)
			table = append(table, float32(cos), float32(sin))
		}
	}
	return table
}

// sincos returns sine and cosine of the exact product p*w. The product alone
// rounds away up to 2^-30 radians at p = 2^24, so what is rounded away is
// brought back in first order.
func sincos(p, w float64) (sin, cos float64) {
	angle := p * w
	rest := math.FMA(p, w, -angle)
	s, c := math.Sincos(angle)
	return s + rest*c, c - rest*s
}
