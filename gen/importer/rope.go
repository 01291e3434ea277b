package importer

import (
	"bytes"
	"fmt"

	"github.com/kgen-project/kgen/runtime/rope"
)

// rope fills in the spec's RoPE rule.
func (im *importer) rope() {
	im.spec.Rule.Pairing = rope.Half // all of these families, as published on Hugging Face
	theta, hasTheta := im.config.number("rope_theta")
	im.from("rope.theta", im.config, "rope_theta")
	partial, hasPartial := im.config.number("partial_rotary_factor")
	partialFrom := im.config
	parameters := im.ropeParameters()
	if parameters != nil {
		if v, ok := parameters.number("rope_theta"); ok {
			if hasTheta && v != theta {
				parameters.fail("rope_theta", "%v differs from rope_theta outside, %v", v, theta)
			}
			theta, hasTheta = v, true
			im.from("rope.theta", parameters, "rope_theta")
		}
		if v, ok := parameters.number("partial_rotary_factor"); ok {
			if hasPartial && v != partial {
				parameters.fail("partial_rotary_factor", "%v differs from partial_rotary_factor outside, %v", v, partial)
			}
			partial, hasPartial, partialFrom = v, true, parameters
		}
		if im.ropeRule(parameters) {
			parameters.refuseRest()
		}
	} else {
		im.spec.Rule.Type = rope.Default
	}
	// Only the stretching rules read it, and they have done so above.
	im.config.taken["original_max_position_embeddings"] = true
	if !hasTheta {
		if theta = im.family.theta; theta == 0 {
			im.config.fail("rope_theta", "missing")
		}
	}
	im.spec.Rule.Theta = theta
	im.spec.Rule.RotaryDim = im.spec.Model.HeadDim
	if hasPartial {
		im.spec.Rule.RotaryDim = int(partial * float64(im.spec.Model.HeadDim))
		im.from("rope.rotary_dim", partialFrom, "partial_rotary_factor")
		switch {
		case partial <= 0 || partial > 1:
			partialFrom.fail("partial_rotary_factor", "%v is not above 0 and at most 1", partial)
		case partial != 1 && !im.family.partial:
			partialFrom.fail("partial_rotary_factor", "the published code of %s rotates all dimensions; it has to be 1", im.modelType)
		}
	}
}

// ropeParameters returns rope_scaling, which newer files call
// rope_parameters; nil: neither is given.
func (im *importer) ropeParameters() *object {
	old, hasOld := im.config.take("rope_scaling")
	v, hasNew := im.config.take("rope_parameters")
	path := "rope_parameters."
	if hasOld && hasNew && !bytes.Equal(old.raw, v.raw) {
		im.config.fail("rope_parameters", "rope_scaling is given too, and differs; give one of them")
		return nil
	}
	if hasOld {
		v, path = old, "rope_scaling."
	}
	if !hasOld && !hasNew {
		return nil
	}
	return im.src.object(path, v.raw, v.offset)
}

// ropeRule reads the rule and its parameters. Of a rule that it does not know it can't say
// which those are, and returns false.
func (im *importer) ropeRule(p *object) bool {
	rule := &im.spec.Rule
	typ, hasType := p.text("rope_type")
	old, hasOld := p.text("type")
	field := "rope_type"
	switch {
	case !hasType && !hasOld:
		p.fail("rope_type", "missing")
		return false
	case hasType && hasOld && typ != old:
		p.fail("type", "%q differs from rope_type, %q", old, typ)
		return false
	case !hasType:
		typ, field = old, "type"
	}
	for _, f := range []string{"factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate",
		"attention_factor", "mscale", "mscale_all_dim", "short_factor", "long_factor"} {
		im.from("rope."+f, p, f)
	}
	im.from("rope.type", p, field)
	rule.Type = typ
	switch typ {
	case rope.Default:
	case rope.Linear:
		rule.Factor, _ = p.number("factor")
	case rope.Llama3:
		rule.Factor, _ = p.number("factor")
		rule.LowFreqFactor, _ = p.number("low_freq_factor")
		rule.HighFreqFactor, _ = p.number("high_freq_factor")
		rule.OriginalMaxPosition = im.originalMaxPosition(p)
	case rope.YaRN:
		im.yarn(p)
	case rope.LongRoPE, "su":
		rule.Type = rope.LongRoPE
		im.longrope(p)
	case "dynamic":
		p.fail(field, "dynamic changes the frequencies with the sequence's length, which stored keys cannot follow; a spec cannot express it")
		return false
	case "mrope":
		p.fail(field, "mrope gives a token several positions; a spec cannot express it")
		return false
	default:
		p.fail(field, "%.48q is not known to kgen import, which knows default, linear, llama3, yarn and longrope", typ)
		return false
	}
	return true
}

func (im *importer) yarn(p *object) {
	rule := &im.spec.Rule
	rule.Factor, _ = p.number("factor")
	rule.BetaFast, _ = p.number("beta_fast")
	rule.BetaSlow, _ = p.number("beta_slow")
	rule.AttentionFactor = p.positive("attention_factor")
	if truncate, ok := p.boolean("truncate"); ok {
		rule.NoTruncate = !truncate
	}
	// The published rule reads mscale only beside mscale_all_dim, and neither
	// beside attention_factor; 0 stands for missing.
	m, _ := p.number("mscale")
	all, _ := p.number("mscale_all_dim")
	if m != 0 && all != 0 && rule.AttentionFactor == 0 {
		rule.MScale, rule.MScaleAllDim = m, all
	}
	if rule.OriginalMaxPosition = im.originalMaxPosition(p); rule.OriginalMaxPosition == 0 {
		rule.OriginalMaxPosition = im.config.required("max_position_embeddings")
		im.from("rope.original_max_position", im.config, "max_position_embeddings")
	}
}

// originalMaxPosition reads original_max_position_embeddings among the rule's
// parameters, or, as Phi-3 has it, outside; 0: not given.
func (im *importer) originalMaxPosition(p *object) int {
	const name = "original_max_position_embeddings"
	inside, hasInside := p.integer(name)
	outside, hasOutside := im.config.integer(name)
	if hasInside && hasOutside && inside != outside {
		p.fail(name, "%d differs from %s outside, %d", inside, name, outside)
	}
	if !hasInside && hasOutside {
		im.from("rope.original_max_position", im.config, name)
		return outside
	}
	im.from("rope.original_max_position", p, name)
	return inside
}

func (im *importer) longrope(p *object) {
	rule := &im.spec.Rule
	rule.ShortFactor = p.numbers("short_factor")
	rule.LongFactor = p.numbers("long_factor")
	rule.Factor, _ = p.number("factor")
	rule.AttentionFactor = p.positive("attention_factor")
	rule.MaxPosition = im.config.required("max_position_embeddings")
	im.from("rope.max_position", im.config, "max_position_embeddings")
	rule.OriginalMaxPosition = im.originalMaxPosition(p)
	if rule.OriginalMaxPosition > 0 {
		stretch := float64(rule.MaxPosition) / float64(rule.OriginalMaxPosition)
		switch rule.Factor {
		case 0:
			rule.Factor = stretch
			im.from("rope.factor", im.config, "max_position_embeddings")
		case stretch:
		default:
			p.fail("factor", "%v differs from max_position_embeddings over original_max_position_embeddings, %v; "+
				"some versions of the published code take the one and some the other: make them equal", rule.Factor, stretch)
		}
	}
	if rule.MaxPosition > rule.OriginalMaxPosition {
		im.notes = append(im.notes, fmt.Sprintf(`
The published rule uses short_factor for sequences of up to %d tokens and long_factor for longer ones. Stored keys
need one choice for all: with this max_position it is long_factor. For short_factor, set max_position to %d.`,
			rule.OriginalMaxPosition, rule.OriginalMaxPosition))
	}
}
