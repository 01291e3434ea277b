package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/numeric"
)

func formats() map[Element]numeric.Format {
	return map[Element]numeric.Format{BF16: numeric.BF16, FP16: numeric.FP16}
}

func TestLoadEveryElement(t *testing.T) {
	for e, f := range formats() {
		for _, n := range []int{1 << 16, 1<<16 - 1} { // in fours, and with a rest
			src, dst := make([]byte, 2*n), make([]float32, n)
			for i := range n {
				binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
			}
			e.load(dst, src)
			for i, got := range dst {
				want := float32(f.Value(uint16(i)))
				if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
					t.Fatalf("%s: %#x is %g, want %g", e, i, got, want)
				}
			}
		}
	}
}

func TestStoreRoundsToNearestEven(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	inf := float32(math.Inf(1))
	xs := []float32{0, inf, float32(math.NaN()), math.MaxFloat32, math.SmallestNonzeroFloat32, 65504, 65519.996, 65520}
	for range 200_000 {
		xs = append(xs, math.Float32frombits(rng.Uint32()), float32(rng.NormFloat64()), float32(math.Ldexp(rng.Float64(), -14-rng.IntN(14))))
	}
	for e, f := range formats() {
		for b := range uint16(1 << 14) { // a value, halfway to the next one, and next to both
			x := float32(f.Value(2 * b))
			half := (x + float32(f.Value(2*b+1))) / 2
			xs = append(xs, x, half, math.Nextafter32(half, inf), math.Nextafter32(half, -inf), math.Nextafter32(x, inf))
		}
		for _, x := range xs {
			for _, x := range []float32{x, -x} {
				var got [2]byte
				e.store(got[:], []float32{x})
				bits, want := binary.LittleEndian.Uint16(got[:]), f.Bits(float64(x))
				if bits != want && !(math.IsNaN(f.Value(bits)) && x != x) {
					t.Fatalf("%s: %g (%#x) is stored as %#x, want %#x", e, x, math.Float32bits(x), bits, want)
				}
				rounded := []float32{x}
				e.round(rounded)
				if y := float32(f.Value(want)); rounded[0] != y && x == x {
					t.Fatalf("%s: %g is rounded to %g, want %g", e, x, rounded[0], y)
				}
			}
		}
	}
}

func TestExp2(t *testing.T) {
	if got := exp2(0); got != 1 {
		t.Errorf("exp2(0) = %g", got)
	}
	if got := exp2(negativeInfinity); got != 0 {
		t.Errorf("exp2(-Inf) = %g", got)
	}
	if got := exp2(float32(math.NaN())); got == got {
		t.Errorf("exp2(NaN) = %g", got)
	}
	for x := float32(-130); x <= 0; x += 1. / 4099 {
		got, want := float64(exp2(x)), math.Exp2(float64(x))
		if want < math.Ldexp(1, -125) {
			want = 0
		}
		if math.Abs(got-want) > want*math.Ldexp(1, -22) {
			t.Fatalf("exp2(%g) = %g, want %g", x, got, want)
		}
	}
}
