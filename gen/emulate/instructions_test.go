package emulate_test

import (
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
)

// format is a 16-bit floating-point format.
type format struct {
	name           string
	exponent, bits int // bits of exponent and of fraction
}

var (
	bf16 = format{"bf16", 8, 7}
	fp16 = format{"fp16", 5, 10}
)

// value is what a pattern of 16 bits means.
func (f format) value(h uint16) float64 {
	sign, exponent := 1.0, int(h>>f.bits)&(1<<f.exponent-1)
	if h>>15 != 0 {
		sign = -1
	}
	fraction, bias := float64(h&(1<<f.bits-1)), 1<<(f.exponent-1)-1
	switch {
	case exponent == 1<<f.exponent-1 && fraction != 0:
		return math.NaN()
	case exponent == 1<<f.exponent-1:
		return math.Inf(int(sign))
	case exponent == 0:
		return sign * math.Ldexp(fraction, 1-bias-f.bits)
	}
	return sign * math.Ldexp(fraction+float64(int(1)<<f.bits), exponent-bias-f.bits)
}

// round finds the pattern nearest to x, even where two are as near.
func (f format) round(x float64) uint16 {
	if math.IsNaN(x) {
		return 0x7fff
	}
	infinity := uint16(1<<f.exponent-1) << f.bits
	magnitude := math.Abs(x)
	above := uint16(sort.Search(int(infinity), func(h int) bool { return f.value(uint16(h)) >= magnitude }))
	h := above
	if above > 0 && f.value(above) != magnitude {
		high := f.value(above)
		if above == infinity { // infinity stands where the next finite number would
			high = 2*f.value(above-1) - f.value(above-2)
		}
		low, up := magnitude-f.value(above-1), high-magnitude
		if low < up || low == up && (above-1)%2 == 0 {
			h--
		}
	}
	if math.Signbit(x) {
		h |= 0x8000
	}
	return h
}

func TestMMA(t *testing.T) {
	d := open(t, emulate.Options{})
	for _, f := range []format{bf16, fp16} {
		random := rand.New(rand.NewPCG(1, 2))
		var a [16][16]float64
		var b [16][8]float64
		var c [16][8]float64
		number := func() float64 { return float64(random.IntN(17) - 8) } // sums are exact
		for i := range 16 {
			for k := range 16 {
				a[i][k] = number()
			}
			for j := range 8 {
				b[i][j], c[i][j] = number(), number()
			}
		}
		// The layouts of "Matrix Fragments for mma.m16n8k16" in the PTX ISA.
		var fa [32][8]uint16
		var fb [32][4]uint16
		var fd [32][4]float32
		rowOfD := func(lane, i int) (int, int) { return lane>>2 + i/2*8, lane%4*2 + i&1 }
		for lane := range 32 {
			group, member := lane>>2, lane%4
			for i := range 8 {
				row, column := group, member*2+i&1
				if !(i < 2 || i >= 4 && i < 6) {
					row += 8
				}
				if i >= 4 {
					column += 8
				}
				fa[lane][i] = f.round(a[row][column])
			}
			for i := range 4 {
				row := member*2 + i&1
				if i >= 2 {
					row += 8
				}
				fb[lane][i] = f.round(b[row][group])
				row, column := rowOfD(lane, i)
				fd[lane][i] = float32(c[row][column])
			}
		}
		out := upload(t, d, fd)
		params := raw(t, []abi.DevicePtr{upload(t, d, fa), upload(t, d, fb), out})
		if err := load(t, d, "mma", "mma_"+f.name).Launch(0, one(32, 0), params); err != nil {
			t.Fatal(err)
		}
		got := download[[4]float32](t, d, out, 32)
		for lane := range 32 {
			for i := range 4 {
				row, column := rowOfD(lane, i)
				want := c[row][column]
				for k := range 16 {
					want += a[row][k] * b[k][column]
				}
				if float64(got[lane][i]) != want {
					t.Errorf("%s: element (%d,%d) is %v, want %v", f.name, row, column, got[lane][i], want)
				}
			}
		}
	}
}

func TestLdMatrix(t *testing.T) {
	d := open(t, emulate.Options{})
	k := load(t, d, "mma", "ldmatrix")
	var in [4][8][8]uint16
	for m := range 4 {
		for i := range 8 {
			for j := range 8 {
				in[m][i][j] = uint16(m*64 + i*8 + j)
			}
		}
	}
	src := upload(t, d, in)
	for _, transposed := range []int32{0, 1} {
		out := upload(t, d, make([]uint32, 128))
		params := raw(t, struct {
			In, Out              abi.DevicePtr
			Transposed, Reserved int32
		}{src, out, transposed, 0})
		if err := k.Launch(0, one(32, 512), params); err != nil {
			t.Fatal(err)
		}
		got := download[[4][2]uint16](t, d, out, 32)
		for lane := range 32 {
			for m := range 4 {
				for i := range 2 {
					want := in[m][lane/4][lane%4*2+i]
					if transposed == 1 {
						want = in[m][lane%4*2+i][lane/4]
					}
					if got[lane][m][i] != want {
						t.Errorf("transposed %d, lane %d, register %d, half %d: %d, want %d", transposed, lane, m, i, got[lane][m][i], want)
					}
				}
			}
		}
	}
}

func TestStMatrix(t *testing.T) {
	d := open(t, emulate.Options{})
	k := load(t, d, "mma", "stmatrix")
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(5, seed))
		var in [32][4][2]uint16
		for lane := range in {
			for m := range 4 {
				in[lane][m] = [2]uint16{uint16(random.Uint32()), uint16(random.Uint32())}
			}
		}
		var place [32]int32
		for lane, row := range random.Perm(32) {
			place[lane] = int32(row)
		}
		out, again := upload(t, d, make([]uint16, 256)), upload(t, d, make([]uint32, 128))
		if err := k.Launch(0, one(32, 512), raw(t, []abi.DevicePtr{upload(t, d, in), upload(t, d, place), out, again})); err != nil {
			t.Fatal(err)
		}
		rows := download[[8]uint16](t, d, out, 32)
		for m := range 4 {
			for i := range 8 {
				for j := range 8 {
					if got, want := rows[place[m*8+i]][j], in[i*4+j/2][m][j%2]; got != want {
						t.Errorf("matrix %d, element (%d,%d): %#04x, want %#04x", m, i, j, got, want)
					}
				}
			}
		}
		for lane, got := range download[[4][2]uint16](t, d, again, 32) {
			if got != in[lane] {
				t.Errorf("lane %d loads %#04x, and stored %#04x", lane, got, in[lane])
			}
		}
		if c := d.TakeCounters(); c.SharedStoreBytes != 512 {
			t.Errorf("%d bytes stored", c.SharedStoreBytes)
		}
	}
}

func TestPairsOfFP16(t *testing.T) {
	const n = 20000
	random := rand.New(rand.NewPCG(5, 6))
	var a, b, c [n][2]uint16
	for i := range n {
		for h := range 2 {
			x, y := uint16(random.Uint32()), uint16(random.Uint32()) // every magnitude
			if i%2 == 0 {                                            // or such that sums are near the middle of two
				x, y = fp16.round(random.NormFloat64()), fp16.round(random.NormFloat64())
			}
			product := fp16.value(x) * fp16.value(y)
			a[i][h], b[i][h], c[i][h] = x, y, fp16.round(product*math.Exp2(float64(random.IntN(24)-4)))
		}
	}
	d := open(t, emulate.Options{})
	params := []abi.DevicePtr{upload(t, d, a[:]), upload(t, d, b[:]), upload(t, d, c[:])}
	for range 5 {
		params = append(params, upload(t, d, make([][2]uint16, n)))
	}
	if err := load(t, d, "arithmetic", "pairs").Launch(0, one(32, 0), append(raw(t, params), raw(t, []int32{n, 0})...)); err != nil {
		t.Fatal(err)
	}
	var got [5][][2]uint16
	for i := range got {
		got[i] = download[[2]uint16](t, d, params[3+i], n)
	}
	for i := range n {
		for h := range 2 {
			x, y, z := fp16.value(a[i][h]), fp16.value(b[i][h]), fp16.value(c[i][h])
			for k, want := range []float64{x * y, x*y + z, -x} {
				if have := got[k][i][h]; have != fp16.round(want) && !(math.IsNaN(want) && math.IsNaN(fp16.value(have))) {
					t.Fatalf("%v, %v, %v: result %d is %#04x, want %#04x", x, y, z, k, have, fp16.round(want))
				}
			}
		}
		if lower, upper := ([2]uint16{a[i][0], b[i][0]}), ([2]uint16{a[i][1], b[i][1]}); got[3][i] != lower || got[4][i] != upper {
			t.Fatalf("halves %v and %v, want %v and %v", got[3][i], got[4][i], lower, upper)
		}
	}
}

func TestArithmetic(t *testing.T) {
	var in []float32
	random := rand.New(rand.NewPCG(3, 4))
	for range 4000 {
		in = append(in, math.Float32frombits(random.Uint32())) // every magnitude
		in = append(in, float32(random.NormFloat64()))
		h := uint16(random.Uint32())
		for _, f := range []format{bf16, fp16} { // exact values, the middles between two, and their neighbours
			x := float32((f.value(h) + f.value(h+1)) / 2)
			in = append(in, float32(f.value(h)), x, math.Nextafter32(x, 0), math.Nextafter32(x, float32(math.Inf(1))))
		}
	}
	inf := float32(math.Inf(1))
	in = append(in, 0, float32(math.Copysign(0, -1)), inf, -inf, float32(math.NaN()), 65504, 65519.99, 65520, 65535, -65520,
		math.MaxFloat32, math.SmallestNonzeroFloat32, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1p-14, 0x1p-126, 1)
	if len(in)%2 != 0 {
		t.Fatal("odd")
	}
	d := open(t, emulate.Options{})
	n := len(in)
	input := upload(t, d, in)
	results := make([]abi.DevicePtr, 7)
	for i := range results {
		results[i] = upload(t, d, make([]float32, n))
	}
	params := append(raw(t, append([]abi.DevicePtr{input}, results...)), raw(t, []int32{int32(n), 0})...)
	if err := load(t, d, "arithmetic", "arithmetic").Launch(0, one(32, 0), params); err != nil {
		t.Fatal(err)
	}
	for i, f := range []format{bf16, fp16} {
		packed := download[uint16](t, d, results[i], n)
		unpacked := download[float32](t, d, results[2+i], n)
		for j, x := range in {
			if want := f.round(float64(x)); packed[j] != want {
				t.Errorf("%s: %v packs to %#04x, want %#04x", f.name, x, packed[j], want)
			}
			if want := f.value(packed[j]); !same(float64(unpacked[j]), want) {
				t.Errorf("%s: %#04x unpacks to %v, want %v", f.name, packed[j], unpacked[j], want)
			}
		}
	}
	flush := func(x float64) float64 {
		if math.Abs(x) < 0x1p-126 {
			return math.Copysign(0, x)
		}
		return x
	}
	exp2, log2 := download[float32](t, d, results[4], n), download[float32](t, d, results[5], n)
	for i, x := range in {
		if want := flush(math.Exp2(flush(float64(x)))); !near(exp2[i], want) {
			t.Errorf("2^%v is %v, want %v", x, exp2[i], want)
		}
		if want := flush(math.Log2(math.Abs(flush(float64(x))))); flush(float64(x)) >= 0 && !near(log2[i], want) {
			t.Errorf("log2 %v is %v, want %v", x, log2[i], want)
		} else if flush(float64(x)) < 0 && log2[i] == log2[i] {
			t.Errorf("log2 %v is %v, want NaN", x, log2[i])
		}
	}
	across := download[float32](t, d, results[6], 32)
	for lane := range 32 {
		if want := in[lane^5]; !same(float64(across[lane]), float64(want)) && want == want {
			t.Errorf("lane %d receives %v, want %v", lane, across[lane], want)
		}
	}
}

func same(x, y float64) bool { return x == y && math.Signbit(x) == math.Signbit(y) || x != x && y != y }

// near allows one place of fp32, and at its end the choice of side.
func near(x float32, want float64) bool {
	if same(float64(x), float64(float32(want))) || math.Abs(float64(x)-want) <= math.Abs(want)*0x1p-23 {
		return true
	}
	return math.Abs(want) < 0x1.00001p-126 && math.Abs(float64(x)) < 0x1.00001p-126
}
