package cpu

import (
	"encoding/binary"
	"math"
)

// elementBytes is the size of every element type.
const elementBytes = 2

// load turns len(dst) stored elements to float32, exactly.
func (e Element) load(dst []float32, src []byte) {
	src = src[:elementBytes*len(dst)]
	if e == FP16 {
		for i := range dst {
			dst[i] = fromFP16(binary.LittleEndian.Uint16(src[2*i:]))
		}
		return
	}
	for len(dst) >= 4 && len(src) >= 8 { // four a time
		x := binary.LittleEndian.Uint64(src)
		dst[0] = math.Float32frombits(uint32(x) << 16)
		dst[1] = math.Float32frombits(uint32(x) &^ 0xffff)
		dst[2] = math.Float32frombits(uint32(x>>32) << 16)
		dst[3] = math.Float32frombits(uint32(x>>32) &^ 0xffff)
		dst, src = dst[4:], src[8:]
	}
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// store rounds src to elements, to nearest even.
func (e Element) store(dst []byte, src []float32) {
	dst = dst[:elementBytes*len(src)]
	for i, x := range src {
		bits := toBF16(x)
		if e == FP16 {
			bits = toFP16(x)
		}
		binary.LittleEndian.PutUint16(dst[2*i:], bits)
	}
}

// round rounds xs to values of the type, to nearest even.
func (e Element) round(xs []float32) {
	if e == FP16 {
		for i, x := range xs {
			xs[i] = fromFP16(toFP16(x))
		}
		return
	}
	for i, x := range xs {
		xs[i] = math.Float32frombits(uint32(toBF16(x)) << 16)
	}
}

func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // quiet NaN
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// fromFP16 moves the exponent and the mantissa to their places and lets a
// product by 2^112 make up for the exponents' different biases: it is exact,
// for subnormals too.
func fromFP16(h uint16) float32 {
	b := uint32(h&0x7fff) << 13
	sign := uint32(h&0x8000) << 16
	if h&0x7c00 == 0x7c00 { // infinity or NaN
		return math.Float32frombits(sign | b | 0x7f800000)
	}
	x := math.Float32frombits(b) * (1 << 112)
	return math.Float32frombits(sign | math.Float32bits(x))
}

func toFP16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, b := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 // quiet NaN
	case b >= 0x477ff000: // rounds to 2^16 or more
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: the sum's unit is the smallest subnormal
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-(127-15)<<23)>>13)
}
