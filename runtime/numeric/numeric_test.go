package numeric_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/kgen-project/kgen/runtime/numeric"
)

func TestBits(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		format numeric.Format
		x      float64
		want   uint16
	}{
		{numeric.BF16, 0, 0x0000},
		{numeric.BF16, math.Copysign(0, -1), 0x8000},
		{numeric.BF16, 1, 0x3f80},
		{numeric.BF16, -2, 0xc000},
		{numeric.BF16, 1 + 1.0/256, 0x3f80},                         // a tie goes to even, down
		{numeric.BF16, 1 + 3.0/256, 0x3f82},                         // a tie goes to even, up
		{numeric.BF16, 1 + 1.0/256 + math.Ldexp(1, -50), 0x3f81},    // above the tie by less than float32 holds
		{numeric.BF16, 1 + 3.0/256 - math.Ldexp(1, -50), 0x3f81},    // below the tie, likewise
		{numeric.BF16, 2 - 1.0/256, 0x4000},                         // carries into the exponent
		{numeric.BF16, math.Ldexp(1, -133), 0x0001},                 // smallest subnormal
		{numeric.BF16, math.Ldexp(1, -134), 0x0000},                 // half of it, a tie
		{numeric.BF16, math.Ldexp(1.5, -134), 0x0001},               // above the tie
		{numeric.BF16, math.Ldexp(1, -126), 0x0080},                 // smallest normal
		{numeric.BF16, math.Ldexp(255, 120), 0x7f7f},                // largest
		{numeric.BF16, math.Ldexp(511, 119), 0x7f80},                // half a unit above, a tie
		{numeric.BF16, inf, 0x7f80},                                 //
		{numeric.BF16, -inf, 0xff80},                                //
		{numeric.BF16, math.NaN(), 0x7fc0},                          //
		{numeric.BF16, 5e-324, 0x0000},                              // a float64 subnormal
		{numeric.FP16, 1, 0x3c00},                                   //
		{numeric.FP16, 65504, 0x7bff},                               // largest
		{numeric.FP16, 65519.99, 0x7bff},                            //
		{numeric.FP16, 65520, 0x7c00},                               //
		{numeric.FP16, math.Ldexp(1, -24), 0x0001},                  // smallest subnormal
		{numeric.FP16, math.Ldexp(1, -25), 0x0000},                  // half of it, a tie
		{numeric.FP16, math.Ldexp(1, -14) * (1 - 1.0/4096), 0x0400}, // rounds up to the smallest normal
		{numeric.FP16, 1 + 1.0/2048, 0x3c00},                        //
		{numeric.FP16, 1 + 3.0/2048, 0x3c02},                        //
		{numeric.FP16, -inf, 0xfc00},                                //
		{numeric.FP16, math.NaN(), 0x7e00},                          //
	} {
		if got := c.format.Bits(c.x); got != c.want {
			t.Errorf("%+v: Bits(%g) = %#04x, want %#04x", c.format, c.x, got, c.want)
		}
	}
}

// Every value of a format is its own rounding, and what lies between two
// neighbours goes to the nearer.
func TestRoundTrip(t *testing.T) {
	for _, f := range []numeric.Format{numeric.BF16, numeric.FP16} {
		for b := range 1 << 15 {
			b := uint16(b)
			x := f.Value(b)
			if math.IsNaN(x) {
				if y := f.Value(f.Bits(x)); !math.IsNaN(y) {
					t.Fatalf("%+v: NaN %#04x became %g", f, b, y)
				}
				continue
			}
			if got := f.Bits(x); got != b {
				t.Fatalf("%+v: Bits(Value(%#04x)) = %#04x", f, b, got)
			}
			if got := f.Bits(-x); got != b|0x8000 {
				t.Fatalf("%+v: Bits(-Value(%#04x)) = %#04x", f, b, got)
			}
			if next := f.Value(b + 1); !math.IsInf(x, 0) && !math.IsInf(next, 0) {
				if near := x + 0.49*(next-x); f.Bits(near) != b {
					t.Fatalf("%+v: %g did not go down to %g", f, near, x)
				}
				if near := x + 0.51*(next-x); f.Bits(near) != b+1 {
					t.Fatalf("%+v: %g did not go up to %g", f, near, next)
				}
			}
		}
	}
}

// BF16 is the upper half of a float32, which gives Value a second definition.
func TestBF16IsUpperFloat32(t *testing.T) {
	for b := range 1 << 16 {
		want := float64(math.Float32frombits(uint32(b) << 16))
		if got := numeric.BF16.Value(uint16(b)); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("Value(%#04x) = %g, want %g", b, got, want)
		}
	}
}

func ExampleFormat_Round() {
	fmt.Println(numeric.BF16.Round(3.14159), numeric.FP16.Round(3.14159))
	// Output: 3.140625 3.140625
}

func ExampleFormat_Decode() {
	fmt.Println(numeric.FP16.Decode(numeric.FP16.Encode(nil, 1, -0.1)))
	// Output: [1 -0.0999755859375]
}
