// Package numeric converts between float64 and the 16-bit element types of a
// KV cache, rounding once, to nearest even.
package numeric

import (
	"encoding/binary"
	"math"
)

// Format is a 16-bit floating-point type: one sign bit, then the exponent,
// then the mantissa.
type Format struct {
	mantissa uint // explicit mantissa bits; the exponent has 15 - mantissa
}

// The element types of the design's section 6.
var (
	BF16 = Format{mantissa: 7}
	FP16 = Format{mantissa: 10}
)

func (f Format) bias() int        { return 1<<(14-f.mantissa) - 1 }
func (f Format) infinity() uint16 { return 0x7fff >> f.mantissa << f.mantissa }

// Epsilon is the distance from 1 to the next larger value. A rounding moves a
// normal value by at most Epsilon/2 of itself.
func (f Format) Epsilon() float64 { return math.Ldexp(1, -int(f.mantissa)) }

// Bits rounds x to the format. NaN becomes a quiet NaN; what is too large
// becomes an infinity.
func (f Format) Bits(x float64) uint16 {
	b := math.Float64bits(x)
	sign := uint16(b >> 48 & 0x8000)
	exponent := int(b >> 52 & 0x7ff)
	m := b & (1<<52 - 1)
	switch {
	case exponent == 0x7ff && m != 0:
		return sign | f.infinity() | 1<<(f.mantissa-1)
	case exponent == 0x7ff:
		return sign | f.infinity()
	case exponent == 0:
		return sign // a float64 subnormal is far below the smallest value
	}
	m |= 1 << 52
	shift := 52 - f.mantissa
	exponent += f.bias() - 1023
	if exponent < 1 { // subnormal: the unit stays that of exponent 1
		if exponent < -20 {
			return sign
		}
		shift += uint(1 - exponent)
		exponent = 1
	}
	q, rest, half := m>>shift, m&(1<<shift-1), uint64(1)<<(shift-1)
	if rest > half || rest == half && q&1 == 1 {
		q++
	}
	// q holds the implicit one, which adds 1 to the exponent field.
	r := uint64(exponent-1)<<f.mantissa + q
	if r > uint64(f.infinity()) {
		r = uint64(f.infinity())
	}
	return sign | uint16(r)
}

// Value is the exact value of b.
func (f Format) Value(b uint16) float64 {
	sign := 1.0
	if b&0x8000 != 0 {
		sign = -1
	}
	exponent := int(b & 0x7fff >> f.mantissa)
	m := float64(b & (1<<f.mantissa - 1))
	switch {
	case b&0x7fff > f.infinity():
		return math.NaN()
	case b&0x7fff == f.infinity():
		return math.Inf(int(sign))
	case exponent == 0:
		return sign * math.Ldexp(m, 1-f.bias()-int(f.mantissa))
	}
	m += float64(uint(1) << f.mantissa)
	// The float64 with this exponent, built directly: Value is in hot loops.
	unit := math.Float64frombits(uint64(exponent-f.bias()-int(f.mantissa)+1023) << 52)
	return sign * m * unit
}

// Round is the nearest value of the format.
func (f Format) Round(x float64) float64 { return f.Value(f.Bits(x)) }

// Encode appends the little-endian bits of each of xs, rounded, to dst.
func (f Format) Encode(dst []byte, xs ...float64) []byte {
	for _, x := range xs {
		dst = binary.LittleEndian.AppendUint16(dst, f.Bits(x))
	}
	return dst
}

// Decode is the values of src, little-endian elements.
func (f Format) Decode(src []byte) []float64 {
	xs := make([]float64, len(src)/2)
	for i := range xs {
		xs[i] = f.Value(binary.LittleEndian.Uint16(src[2*i:]))
	}
	return xs
}
