package rope

import (
	"errors"
	"fmt"
	"math"
)

// The types of rule. Each is documented at the function that computes it.
const (
	None     = "none"
	Default  = "default"
	Linear   = "linear"
	NTK      = "ntk"
	YaRN     = "yarn"
	Llama3   = "llama3"
	LongRoPE = "longrope"
)

// Types lists the types of rule.
func Types() []string { return []string{None, Default, Linear, NTK, YaRN, Llama3, LongRoPE} }

const (
	DefaultMaxPosition = 1 << 20
	LimitMaxPosition   = 1 << 24

	defaultBetaFast = 32
	defaultBetaSlow = 1
)

// Rule is a published RoPE rule with its parameters. Which of them a type
// reads is said at [Fields]; a zero value stands for the default, where there
// is one.
type Rule struct {
	Type        string
	Pairing     Pairing // default Half
	RotaryDim   int     // even
	MaxPosition int     // default DefaultMaxPosition; LongRoPE has no default
	Theta       float64 // base of the frequencies

	Factor              float64   // by which the context is stretched; LongRoPE: default MaxPosition/OriginalMaxPosition
	OriginalMaxPosition int       // context that the model was trained with, tokens
	LowFreqFactor       float64   // Llama3
	HighFreqFactor      float64   // Llama3
	BetaFast            float64   // YaRN, turns in the original context; default 32
	BetaSlow            float64   // YaRN, turns in the original context; default 1
	NoTruncate          bool      // YaRN: do not round the ends of the ramp to whole pairs
	MScale              float64   // YaRN, together with MScaleAllDim; 0: not used
	MScaleAllDim        float64   // YaRN
	AttentionFactor     float64   // YaRN and LongRoPE; default: by the rule
	ShortFactor         []float64 // LongRoPE, one a pair
	LongFactor          []float64 // LongRoPE, one a pair
}

// FieldError says what is wrong with one parameter of a rule.
type FieldError struct {
	Field string // as a spec spells it, such as low_freq_factor
	Msg   string
}

func (e *FieldError) Error() string { return "rope: " + e.Field + ": " + e.Msg }

// Fields returns the parameters that a type of rule reads, as a spec spells
// them: those that must be given, and those that have a default. Type itself
// is in neither.
func Fields(typ string) (required, optional []string) {
	common := []string{"pairing", "rotary_dim", "max_position"}
	switch typ {
	case Default:
		return []string{"theta"}, common
	case Linear, NTK:
		return []string{"theta", "factor"}, common
	case YaRN:
		return []string{"theta", "factor", "original_max_position"},
			append(common, "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
	case Llama3:
		return []string{"theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position"}, common
	case LongRoPE:
		return []string{"theta", "original_max_position", "max_position", "short_factor", "long_factor"},
			[]string{"pairing", "rotary_dim", "factor", "attention_factor"}
	default:
		return nil, nil
	}
}

// Resolve computes the rule's variant. Its error joins a [*FieldError] for
// each parameter that is wrong.
func (r Rule) Resolve() (Variant, error) {
	if r.Pairing == "" {
		r.Pairing = Half
	}
	if r.Type == None {
		return Variant{Type: None, Pairing: r.Pairing, AttentionFactor: 1, MaxPosition: DefaultMaxPosition}, nil
	}
	if r.MaxPosition == 0 && r.Type != LongRoPE {
		r.MaxPosition = DefaultMaxPosition
	}
	if r.BetaFast == 0 {
		r.BetaFast = defaultBetaFast
	}
	if r.BetaSlow == 0 {
		r.BetaSlow = defaultBetaSlow
	}
	if err := r.check(); err != nil {
		return Variant{}, err
	}

	v := Variant{
		Type: r.Type, Pairing: r.Pairing, RotaryDim: r.RotaryDim,
		Frequencies: make([]float64, r.RotaryDim/2), AttentionFactor: 1, MaxPosition: r.MaxPosition,
	}
	frequency := r.frequency()
	for t := range v.Frequencies {
		v.Frequencies[t] = frequency(t)
	}
	switch {
	case r.AttentionFactor != 0:
		v.AttentionFactor = r.AttentionFactor
	case r.Type == YaRN:
		v.AttentionFactor = r.yarnAttentionFactor()
	case r.Type == LongRoPE:
		v.AttentionFactor = r.longropeAttentionFactor()
	}
	return v, nil
}

// check reports every parameter that is wrong.
func (r Rule) check() error {
	var errs []error
	require := func(ok bool, field, format string, args ...any) bool {
		if !ok {
			errs = append(errs, &FieldError{field, fmt.Sprintf(format, args...)})
		}
		return ok
	}
	needs := map[string]bool{}
	required, _ := Fields(r.Type)
	if !require(len(required) > 0, "type", "%q is not a rule; the rules are %v", r.Type, Types()) {
		return errors.Join(errs...)
	}
	for _, f := range required {
		needs[f] = true
	}
	require(r.Pairing == Half || r.Pairing == Interleaved, "pairing", "%q is neither half nor interleaved", r.Pairing)
	require(r.RotaryDim >= 2 && r.RotaryDim <= 1024 && r.RotaryDim%2 == 0, "rotary_dim",
		"%d is not an even number from 2 to 1024", r.RotaryDim)
	require(r.MaxPosition >= 1 && r.MaxPosition <= LimitMaxPosition, "max_position",
		"%d is not from 1 to %d", r.MaxPosition, LimitMaxPosition)
	require(r.Theta > 1 && r.Theta <= 1e12, "theta", "%v is not above 1 and at most 1e12", r.Theta)
	if needs["factor"] || r.Factor != 0 {
		require(r.Factor >= 1 && r.Factor <= 1e6, "factor", "%v is not from 1 to 1e6", r.Factor)
	}
	if needs["original_max_position"] {
		require(r.OriginalMaxPosition >= 2 && r.OriginalMaxPosition <= 1<<30, "original_max_position",
			"%d is not from 2 to %d", r.OriginalMaxPosition, 1<<30)
	}
	if r.AttentionFactor != 0 {
		require(r.AttentionFactor > 0 && r.AttentionFactor <= 1e3, "attention_factor",
			"%v is not above 0 and at most 1000", r.AttentionFactor)
		require(r.MScale == 0 && r.MScaleAllDim == 0, "attention_factor",
			"mscale and mscale_all_dim say the same thing another way: give one or the other")
	}
	switch r.Type {
	case NTK:
		require(r.RotaryDim > 2, "rotary_dim", "the ntk rule needs at least 4 rotated dimensions")
	case Llama3:
		low := require(r.LowFreqFactor > 0 && r.LowFreqFactor <= 1e6, "low_freq_factor",
			"%v is not above 0 and at most 1e6", r.LowFreqFactor)
		high := require(r.HighFreqFactor > 0 && r.HighFreqFactor <= 1e6, "high_freq_factor",
			"%v is not above 0 and at most 1e6", r.HighFreqFactor)
		if low && high {
			require(r.HighFreqFactor > r.LowFreqFactor, "high_freq_factor",
				"%v is not above low_freq_factor, %v", r.HighFreqFactor, r.LowFreqFactor)
		}
	case YaRN:
		errs = append(errs, r.checkYaRN(len(errs) == 0)...)
	case LongRoPE:
		errs = append(errs, checkFactors("short_factor", r.ShortFactor, r.RotaryDim/2)...)
		errs = append(errs, checkFactors("long_factor", r.LongFactor, r.RotaryDim/2)...)
	}
	return errors.Join(errs...)
}

// checkYaRN reports what is wrong with YaRN's own parameters, and, where
// everything before was right, with the ramp that they make.
func (r Rule) checkYaRN(ramp bool) (errs []error) {
	require := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, &FieldError{field, fmt.Sprintf(format, args...)})
		}
	}
	within := func(field string, v float64) {
		require(v > 0 && v <= 1e6, field, "%v is not above 0 and at most 1e6", v)
	}
	within("beta_fast", r.BetaFast)
	within("beta_slow", r.BetaSlow)
	require(r.BetaFast > r.BetaSlow, "beta_fast", "%v is not above beta_slow, %v", r.BetaFast, r.BetaSlow)
	switch {
	case r.MScale != 0 && r.MScaleAllDim == 0:
		require(false, "mscale", "it is only used together with mscale_all_dim, which is missing")
	case r.MScale == 0 && r.MScaleAllDim != 0:
		require(false, "mscale_all_dim", "it is only used together with mscale, which is missing")
	case r.MScale != 0:
		within("mscale", r.MScale)
		within("mscale_all_dim", r.MScaleAllDim)
	}
	if ramp && errs == nil {
		low, high := r.yarnRamp()
		require(low <= high, "original_max_position",
			"with theta %v no pair of dimensions turns between %v (beta_slow) and %v (beta_fast) times in %d positions",
			r.Theta, r.BetaSlow, r.BetaFast, r.OriginalMaxPosition)
	}
	return errs
}

func checkFactors(field string, factors []float64, pairs int) []error {
	if len(factors) != pairs {
		return []error{&FieldError{field, fmt.Sprintf("it has %d numbers and needs %d, one for each pair of rotated dimensions", len(factors), pairs)}}
	}
	for i, f := range factors {
		if !(f >= 1e-3 && f <= 1e6) {
			return []error{&FieldError{field, fmt.Sprintf("number %d, %v, is not from 0.001 to 1e6", i+1, f)}}
		}
	}
	return nil
}

// frequency returns the rule's frequency of each pair t.
func (r Rule) frequency() func(t int) float64 {
	switch r.Type {
	case Linear:
		return func(t int) float64 { return r.plain(t) / r.Factor }
	case NTK:
		return r.ntk
	case YaRN:
		return r.yarn()
	case Llama3:
		return r.llama3
	case LongRoPE:
		return r.longrope
	default:
		return r.plain
	}
}

// plain is theta^(-2t/d) (arXiv 2104.09864).
func (r Rule) plain(t int) float64 { return r.power(r.Theta, t) }

func (r Rule) power(base float64, t int) float64 {
	return math.Pow(base, -float64(2*t)/float64(r.RotaryDim))
}

// ntk stretches the base so that the slowest pair is interpolated by the
// factor and the fastest is not: theta' = theta * factor^(d/(d-2)) ("NTK-aware
// scaled RoPE"; section 3.1 of arXiv 2309.00071).
func (r Rule) ntk(t int) float64 {
	d := float64(r.RotaryDim)
	return r.power(r.Theta*math.Pow(r.Factor, d/(d-2)), t)
}

// yarn interpolates slow pairs, keeps fast ones, and blends between the two
// along a ramp over the pairs ("NTK-by-parts" of arXiv 2309.00071).
func (r Rule) yarn() func(t int) float64 {
	low, high := r.yarnRamp()
	if low == high {
		high += 0.001
	}
	return func(t int) float64 {
		slow := min(max((float64(t)-low)/(high-low), 0), 1)
		w := r.plain(t)
		return w/r.Factor*slow + w*(1-slow)
	}
}

// yarnRamp is where the ramp starts and ends, in pairs: the pairs that turn
// BetaFast and BetaSlow times in the original context.
func (r Rule) yarnRamp() (low, high float64) {
	pair := func(turns float64) float64 {
		return float64(r.RotaryDim) * math.Log(float64(r.OriginalMaxPosition)/(2*math.Pi*turns)) / (2 * math.Log(r.Theta))
	}
	low, high = pair(r.BetaFast), pair(r.BetaSlow)
	if !r.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	return max(low, 0), min(high, float64(r.RotaryDim-1))
}

// yarnAttentionFactor is 0.1 ln(factor) + 1, or the quotient of the two that
// have mscale and mscale_all_dim in place of 1 (DeepSeek-V2).
func (r Rule) yarnAttentionFactor() float64 {
	scale := func(m float64) float64 { return 0.1*m*math.Log(r.Factor) + 1 }
	if r.MScale != 0 {
		return scale(r.MScale) / scale(r.MScaleAllDim)
	}
	return scale(1)
}

// llama3 divides by the factor where the wavelength is above
// OriginalMaxPosition/LowFreqFactor, keeps the frequency where it is below
// OriginalMaxPosition/HighFreqFactor, and blends between (Llama 3.1).
func (r Rule) llama3(t int) float64 {
	w := r.plain(t)
	turns := float64(r.OriginalMaxPosition) * w / (2 * math.Pi)
	fast := (turns - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
	fast = min(max(fast, 0), 1)
	return (1-fast)*w/r.Factor + fast*w
}

// longrope divides each pair's frequency by a factor of its own (arXiv
// 2402.13753): of LongFactor where positions reach beyond
// OriginalMaxPosition, else of ShortFactor. Stored keys outlive any one
// sequence, so the choice is MaxPosition's, not a sequence's length.
func (r Rule) longrope(t int) float64 {
	if r.MaxPosition > r.OriginalMaxPosition {
		return r.plain(t) / r.LongFactor[t]
	}
	return r.plain(t) / r.ShortFactor[t]
}

// longropeAttentionFactor is sqrt(1 + ln(factor) / ln(original)).
func (r Rule) longropeAttentionFactor() float64 {
	factor := r.Factor
	if factor == 0 {
		factor = float64(r.MaxPosition) / float64(r.OriginalMaxPosition)
	}
	if factor <= 1 {
		return 1
	}
	return math.Sqrt(1 + math.Log(factor)/math.Log(float64(r.OriginalMaxPosition)))
}
