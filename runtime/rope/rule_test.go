package rope

import (
	"math"
	"strings"
	"testing"
)

func resolve(t *testing.T, r Rule) Variant {
	t.Helper()
	v, err := r.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-14*math.Abs(want) }

func TestDefaultFrequencies(t *testing.T) {
	// 10000^(-2t/8) has whole powers of ten.
	v := resolve(t, Rule{Type: Default, RotaryDim: 8, Theta: 10000})
	for i, want := range []float64{1, 0.1, 0.01, 0.001} {
		if !near(v.Frequencies[i], want) {
			t.Errorf("pair %d: %v, want %v", i, v.Frequencies[i], want)
		}
	}
	if v.Pairing != Half || v.MaxPosition != 1<<20 || v.AttentionFactor != 1 {
		t.Errorf("defaults: %+v", v)
	}
}

func TestLinearIsPositionInterpolation(t *testing.T) {
	plain := resolve(t, Rule{Type: Default, RotaryDim: 64, Theta: 10000})
	linear := resolve(t, Rule{Type: Linear, RotaryDim: 64, Theta: 10000, Factor: 4})
	for i, w := range linear.Frequencies {
		if 4*w != plain.Frequencies[i] {
			t.Errorf("pair %d: %v is not a quarter of %v", i, w, plain.Frequencies[i])
		}
	}
}

func TestNTKEnds(t *testing.T) {
	plain := resolve(t, Rule{Type: Default, RotaryDim: 128, Theta: 10000})
	ntk := resolve(t, Rule{Type: NTK, RotaryDim: 128, Theta: 10000, Factor: 8})
	if ntk.Frequencies[0] != 1 {
		t.Errorf("the fastest pair is changed: %v", ntk.Frequencies[0])
	}
	// What defines the rule: the slowest pair is that of linear interpolation.
	if got, want := ntk.Frequencies[63], plain.Frequencies[63]/8; !near(got, want) {
		t.Errorf("the slowest pair is %v, want %v", got, want)
	}
	for i := 1; i < 63; i++ {
		if w, p := ntk.Frequencies[i], plain.Frequencies[i]; w >= p || w <= p/8 {
			t.Errorf("pair %d: %v is not between %v and %v", i, w, p/8, p)
		}
	}
}

// TestLlama3 holds the rule to its definition by wavelengths. The lengths of
// Llama-3.1 are: kept below 8192/4, divided by 8 above 8192/1.
func TestLlama3(t *testing.T) {
	v := resolve(t, Rule{Type: Llama3, RotaryDim: 128, Theta: 500000, Factor: 8,
		LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPosition: 8192})
	kept, divided, between := 0, 0, 0
	for i, w := range v.Frequencies {
		plain := math.Exp(-2 * float64(i) / 128 * math.Log(500000))
		length := 2 * math.Pi / plain
		want := 0.0
		switch {
		case length < 2048:
			want = plain
			kept++
		case length > 8192:
			want = plain / 8
			divided++
		default:
			smooth := (8192/length - 1) / 3
			want = (1-smooth)*plain/8 + smooth*plain
			between++
		}
		if math.Abs(w-want) > 1e-13*want {
			t.Errorf("pair %d: %v, want %v", i, w, want)
		}
	}
	// 2 pi 500000^(i/64) passes 2048 at pair 28.2 and 8192 at pair 34.98.
	if kept != 29 || between != 6 || divided != 29 {
		t.Errorf("%d pairs kept, %d between, %d divided; want 29, 6, 29", kept, between, divided)
	}
}

// TestYaRN holds the rule to numbers worked out by hand for theta 10^4, 128
// dimensions, 4096 positions: a pair i turns 4096/(2 pi 10^(i/16)) times, which
// is 32 at i = 16 log10(4096/64pi) = 20.944 and 1 at 45.027.
func TestYaRN(t *testing.T) {
	rule := Rule{Type: YaRN, RotaryDim: 128, Theta: 10000, Factor: 16, OriginalMaxPosition: 4096}
	v := resolve(t, rule)
	plain := func(i int) float64 { return math.Pow(10, -float64(i)/16) }
	for i, w := range v.Frequencies {
		slow := min(max(float64(i-20)/(46-20), 0), 1)
		want := plain(i) * (1 - slow + slow/16)
		if math.Abs(w-want) > 1e-13*want {
			t.Errorf("pair %d: %v, want %v", i, w, want)
		}
	}
	// 0.1 ln 16 + 1
	if want := 1.2772588722239781; !near(v.AttentionFactor, want) {
		t.Errorf("attention factor %v, want %v", v.AttentionFactor, want)
	}

	rule.NoTruncate = true
	v = resolve(t, rule)
	low, high := 16*math.Log10(4096/(64*math.Pi)), 16*math.Log10(4096/(2*math.Pi))
	for i, w := range v.Frequencies {
		slow := min(max((float64(i)-low)/(high-low), 0), 1)
		want := plain(i) * (1 - slow + slow/16)
		if math.Abs(w-want) > 1e-12*want {
			t.Errorf("not truncated, pair %d: %v, want %v", i, w, want)
		}
	}
}

// TestYaRNRampEnds holds the ends of the ramp to those of the published code: low is at
// least 0, high at most one less than the rotated dimensions, not than the pairs, and a ramp
// of no length is a thousandth of a pair long.
func TestYaRNRampEnds(t *testing.T) {
	for _, c := range []struct {
		name         string
		theta        float64
		dim, context int
		low, high    float64
	}{
		{"high behind the last pair", 10000, 64, 131072, 22, 35}, // 32 turns at 22.51, 1 at 34.55
		{"high held to the dimensions", 10, 4, 560, 0, 3},        // 32 turns at 0.89, 1 at 3.90
		{"low held to 0", 10000, 64, 100, 0, 10},                 // 32 turns at -2.43, 1 at 9.61
		{"no length", 10000, 64, 6, 0, 0.001},                    // 32 turns at -12.20, 1 at -0.16
	} {
		v := resolve(t, Rule{Type: YaRN, RotaryDim: c.dim, Theta: c.theta, Factor: 4, OriginalMaxPosition: c.context})
		for i, w := range v.Frequencies {
			slow := min(max((float64(i)-c.low)/(c.high-c.low), 0), 1)
			want := math.Pow(c.theta, -2*float64(i)/float64(c.dim)) * (1 - slow + slow/4)
			if math.Abs(w-want) > 1e-13*want {
				t.Errorf("%s, pair %d: %v, want %v", c.name, i, w, want)
			}
		}
	}
}

func TestAttentionFactors(t *testing.T) {
	yarn := Rule{Type: YaRN, RotaryDim: 64, Theta: 10000, Factor: 40, OriginalMaxPosition: 4096}
	ones := make([]float64, 32)
	for i := range ones {
		ones[i] = 1
	}
	long := Rule{Type: LongRoPE, RotaryDim: 64, Theta: 10000, OriginalMaxPosition: 4096, MaxPosition: 131072,
		ShortFactor: ones, LongFactor: ones}
	tests := []struct {
		name string
		rule Rule
		want float64
	}{
		{"yarn 40", yarn, 1.3688879454113936},
		{"yarn without stretch", with(yarn, func(r *Rule) { r.Factor = 1 }), 1},
		{"mscale equal to mscale_all_dim", with(yarn, func(r *Rule) { r.MScale, r.MScaleAllDim = 0.707, 0.707 }), 1},
		{"mscale 1 over 0.5", with(yarn, func(r *Rule) { r.MScale, r.MScaleAllDim = 1, 0.5 }), 1.3688879454113936 / 1.1844439727056968},
		{"given", with(yarn, func(r *Rule) { r.AttentionFactor = 1.5 }), 1.5},
		// sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5/12)
		{"longrope 128k over 4k", long, math.Sqrt(17.0 / 12)},
		{"longrope within the original context", with(long, func(r *Rule) { r.MaxPosition = 4096 }), 1},
		{"longrope, factor given", with(long, func(r *Rule) { r.MaxPosition, r.Factor = 4096, 32 }), math.Sqrt(17.0 / 12)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := resolve(t, tt.rule).AttentionFactor; math.Abs(got-tt.want) > 1e-14 {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func with(r Rule, change func(*Rule)) Rule {
	change(&r)
	return r
}

func TestLongRoPEChoosesByMaxPosition(t *testing.T) {
	r := Rule{Type: LongRoPE, RotaryDim: 4, Theta: 100, OriginalMaxPosition: 4096,
		ShortFactor: []float64{1, 2}, LongFactor: []float64{4, 5}}
	for _, tt := range []struct {
		max  int
		want [2]float64
	}{{4096, [2]float64{1, 0.05}}, {4097, [2]float64{0.25, 0.02}}} {
		r.MaxPosition = tt.max
		v := resolve(t, r)
		if !near(v.Frequencies[0], tt.want[0]) || !near(v.Frequencies[1], tt.want[1]) {
			t.Errorf("max position %d: %v, want %v", tt.max, v.Frequencies, tt.want)
		}
	}
}

func TestScoreFactors(t *testing.T) {
	v := Variant{RotaryDim: 128, AttentionFactor: 1.5}
	if s, q := v.ScoreFactors(128); s != 2.25 || q != 1 {
		t.Errorf("full rotation: %v, %v", s, q)
	}
	v.RotaryDim = 64
	if s, q := v.ScoreFactors(128); s != 1 || q != 2.25 {
		t.Errorf("partial rotation: %v, %v", s, q)
	}
	v.RotaryDim = 0
	if s, q := v.ScoreFactors(128); s != 1 || q != 1 {
		t.Errorf("no rotation: %v, %v", s, q)
	}
}

func TestResolveRefuses(t *testing.T) {
	good := Rule{Type: YaRN, RotaryDim: 128, Theta: 10000, Factor: 4, OriginalMaxPosition: 4096}
	tests := []struct {
		name string
		rule Rule
		want string
	}{
		{"type", Rule{Type: "alibi"}, `rope: type: "alibi" is not a rule`},
		{"theta", with(good, func(r *Rule) { r.Theta = math.NaN() }), "rope: theta: NaN is not"},
		{"factor", with(good, func(r *Rule) { r.Factor = 0.5 }), "rope: factor: 0.5 is not from 1"},
		{"odd", with(good, func(r *Rule) { r.RotaryDim = 63 }), "rope: rotary_dim: 63 is not an even number"},
		{"range", with(good, func(r *Rule) { r.MaxPosition = 1<<24 + 1 }), "rope: max_position: 16777217 is not"},
		{"betas", with(good, func(r *Rule) { r.BetaSlow = 64 }), "rope: beta_fast: 32 is not above beta_slow, 64"},
		{"ramp", with(good, func(r *Rule) { r.OriginalMaxPosition = 2 }), "rope: original_max_position: with theta 10000 no pair"},
		{"half of mscale", with(good, func(r *Rule) { r.MScale = 1 }), "rope: mscale: it is only used together"},
		{"two scales", with(good, func(r *Rule) { r.AttentionFactor, r.MScale, r.MScaleAllDim = 1, 1, 1 }), "rope: attention_factor: mscale"},
		{"ntk", Rule{Type: NTK, RotaryDim: 2, Theta: 10000, Factor: 2}, "rope: rotary_dim: the ntk rule"},
		{"longrope", Rule{Type: LongRoPE, RotaryDim: 4, Theta: 100, OriginalMaxPosition: 4096, MaxPosition: 8192,
			ShortFactor: []float64{1}, LongFactor: []float64{1, -1}}, "rope: short_factor: it has 1 numbers and needs 2"},
		{"longrope without a length", Rule{Type: LongRoPE, RotaryDim: 2, Theta: 100, OriginalMaxPosition: 4096,
			ShortFactor: []float64{1}, LongFactor: []float64{1}}, "rope: max_position: 0 is not"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.rule.Resolve()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}
