package rope

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
)

const bigPrec = 256

func newBig(x float64) *big.Float { return new(big.Float).SetPrec(bigPrec).SetFloat64(x) }

func bigInt(x int64) *big.Float { return new(big.Float).SetPrec(bigPrec).SetInt64(x) }

// bigPi is Machin's pi = 16 atan(1/5) - 4 atan(1/239).
func bigPi() *big.Float {
	atanInverse := func(n int64) *big.Float {
		sum, power := bigInt(0), new(big.Float).Quo(bigInt(1), bigInt(n))
		square := bigInt(n * n)
		for k := int64(1); power.MantExp(nil) > -bigPrec-8; k += 2 {
			term := new(big.Float).Quo(power, bigInt(k))
			if k%4 == 1 {
				sum.Add(sum, term)
			} else {
				sum.Sub(sum, term)
			}
			power.Quo(power, square)
		}
		return sum
	}
	a := new(big.Float).Mul(bigInt(16), atanInverse(5))
	return a.Sub(a, new(big.Float).Mul(bigInt(4), atanInverse(239)))
}

// bigSincos is the Taylor series of the exact product p*w, less whole turns.
func bigSincos(pi *big.Float, p, w float64) (sin, cos *big.Float) {
	x := new(big.Float).Mul(newBig(p), newBig(w))
	turn := new(big.Float).Mul(pi, bigInt(2))
	turns, _ := new(big.Float).Quo(x, turn).Int(nil)
	x.Sub(x, new(big.Float).Mul(turn, new(big.Float).SetPrec(bigPrec).SetInt(turns)))

	sin, cos = bigInt(0), bigInt(1)
	term := bigInt(1)
	for k := int64(1); k < 120; k++ {
		term.Mul(term, x).Quo(term, bigInt(k))
		switch k % 4 {
		case 0:
			cos.Add(cos, term)
		case 1:
			sin.Add(sin, term)
		case 2:
			cos.Sub(cos, term)
		case 3:
			sin.Sub(sin, term)
		}
	}
	return sin, cos
}

func toFloat(x *big.Float) float64 { f, _ := x.Float64(); return f }

func TestSincosIsExact(t *testing.T) {
	pi := bigPi()
	if got := toFloat(pi); got != math.Pi {
		t.Fatalf("the test's own pi is %v", got)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		p := float64(rng.IntN(LimitMaxPosition))
		w := math.Exp(-rng.Float64() * 16)
		sin, cos := sincos(p, w)
		wantSin, wantCos := bigSincos(pi, p, w)
		if d := math.Abs(sin - toFloat(wantSin)); d > 4e-16 {
			t.Errorf("sin(%v * %v) = %v, off by %g", p, w, sin, d)
		}
		if d := math.Abs(cos - toFloat(wantCos)); d > 4e-16 {
			t.Errorf("cos(%v * %v) = %v, off by %g", p, w, cos, d)
		}
	}
}

func TestTableRows(t *testing.T) {
	v := resolve(t, Rule{Type: Default, RotaryDim: 8, Theta: 500000, MaxPosition: 40*32 + 1})
	table := Table(v)
	if want := (32 + 41) * 8; len(table) != want || v.HighRows() != 41 {
		t.Fatalf("the table has %d numbers and %d high rows, want %d and 41", len(table), v.HighRows(), want)
	}
	pi := bigPi()
	for row := range len(table) / 8 {
		p := float64(row)
		if row >= 32 {
			p = float64((row - 32) * 32)
		}
		for pair, w := range v.Frequencies {
			sin, cos := bigSincos(pi, p, w)
			gotCos, gotSin := table[8*row+2*pair], table[8*row+2*pair+1]
			if wantCos, _ := cos.Float32(); gotCos != wantCos {
				t.Fatalf("row %d pair %d: cos %v, want %v", row, pair, gotCos, wantCos)
			}
			if wantSin, _ := sin.Float32(); gotSin != wantSin {
				t.Fatalf("row %d pair %d: sin %v, want %v", row, pair, gotSin, wantSin)
			}
		}
	}
}

// TestTableByAngleAddition follows the way of a kernel: both levels, the
// addition formulas in float32, and a flipped sine for negative positions.
func TestTableByAngleAddition(t *testing.T) {
	v := resolve(t, Rule{Type: Default, RotaryDim: 128, Theta: 500000})
	table, pi := Table(v), bigPi()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		p := rng.IntN(2*v.MaxPosition-1) - (v.MaxPosition - 1)
		abs := max(p, -p)
		pair := rng.IntN(64)
		low := table[128*(abs&(lowRows-1))+2*pair:][:2]
		high := table[128*(lowRows+abs>>abi.RopeLowBits)+2*pair:][:2]
		cos := high[0]*low[0] - high[1]*low[1]
		sin := high[1]*low[0] + high[0]*low[1]
		if p < 0 {
			sin = -sin
		}
		wantSin, wantCos := bigSincos(pi, float64(p), v.Frequencies[pair])
		if d := math.Hypot(float64(cos)-toFloat(wantCos), float64(sin)-toFloat(wantSin)); d > 3e-7 {
			t.Errorf("position %d pair %d: off by %g", p, pair, d)
		}
	}
}

func TestTableOfNothing(t *testing.T) {
	if table := Table(resolve(t, Rule{Type: None})); len(table) != 0 {
		t.Errorf("none has a table of %d numbers", len(table))
	}
}
