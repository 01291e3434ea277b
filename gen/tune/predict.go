package tune

import (
	"math"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// PredictedGain is what the cost model must foretell of a plan, in the mean of a bucket's
// cases, for it to take the default's place on a GPU that has no table. By an H200's times
// (testdata) a plan may be slower than its family's default though the model foretells a
// gain of 0.27; of the one that it foretells more of and that is chosen, 0.49, the gain is 0.46. See
// TestPredictedGain.
const PredictedGain = 0.3

// alignedGain is what it must foretell of a plan for extend whose blocks have the default's tile, and whose matrix units rotate
// queries where the default rotates them by arithmetic. The two differ in little else, so that the model is nearer to their
// ratio than to either's time; with head dim 128, that is, of which the times are: where it foretells so much or more the gain is
// 0.02 to 0.1. See TestPredictedGain.
const alignedGain = 0.03

// alignedPairGain is the same where two blocks read together what the default's read each for itself: where it foretells so much or more
// the gain is 0.03 to 0.19 (H200 and H100, 2026-11-29).
const alignedPairGain = 0.02

// aheadGain is what it must foretell of a plan whose raw keys are rotated ahead of it, and which is
// then the default of baked keys, or that by two blocks. Where the default of raw keys rotates each tile of keys again for
// each tile of queries, the two differ in little but the rotation, of which the model has a time for
// either. No other plan is chosen for it. Where a warpgroup of its own rotates in the kernel the model knows less: of one of which
// it foretells 0.05 (160 tokens over 16k) the loss is 0.09, and of 0.13 (prefill of up to 1024 tokens) the gain is from -0.08
// to 0.15, with head dim 64 of 0.17 from -0.18 to 0.13 (H100, 2026-11-25).
const aheadGain, apartAheadGain = 0.05, 0.2

// exchangeGain is what it must foretell of a plan by two blocks that exchange raw keys and have the default's tile
// otherwise. Of one of which it foretells 0.18 the gain is 0.09 to 0.1, of 0.145 it is 0.02 to 0.05, and of 0.1 from -0.01 to 0.06
// (64 tokens over 8k, H100 and H200).
const exchangeGain = 0.09

// pairGain is what it must foretell of a plan for extend by two blocks that have the default's tile otherwise: they read
// what the default's blocks read, once. Of ones of which it foretells 0.002 to 0.06 the gain is from -0.02 to 0.34, most often
// 0.02 to 0.1, with head dims 128 and 256; the more sequences, the more it is (H100, H200, 2026-11-26).
const pairGain = 0.0015

// promptPairGain is what it must foretell of a plan for prefill by two blocks that have the default's tile otherwise, in prompts of up
// to longestPairPrompt tokens. Of ones of which it foretells 0.012 to 0.04 the gain is from -0.01 to 0.06, most often 0.01 to 0.03, with
// one to eight query heads of a KV head (H200, 2026-11-28; with four of 128 on H100s too), but of 3000 tokens from -0.03 to 0.02: the
// loss is that of two heads of 256 dimensions. Longer prompts follow the clock: there the gain is from -0.09 (H100) to 0.08.
const promptPairGain, longestPairPrompt = 0.013, 8192

// halfTileGain is what it must foretell of a plan for prefill by tiles of 64 keys where the default's have 128, of prompts that leave
// half of those empty: of ones of which it foretells 0.01 to 0.09 the gain is 0.06 to 0.1 (head dim 128, one to eight query heads of
// a KV head, H200, 2026-11-28).
const halfTileGain = 0.01

// halfRowsGain is what it must foretell of a plan for extend by tiles of half of the default's rows and of its keys, for sequences that
// leave the other half empty: of ones of which it foretells 0.03 to 0.07 the gain is 0 to 0.16, most often 0.02 to 0.1 (head dims 64, 128
// and 256, one to eight query heads of a KV head, H200, 2026-11-28; 0.01 to 0.03 on an H100).
const halfRowsGain = 0.02

// enough is the gain that must be foretold of a plan for it to take the default's place, for sequences of up to so many query tokens and
// tokens of KV.
func enough(s spec.Spec, p, usual plan.Plan, most Bucket) float64 {
	block := p.Layout().Tile
	block.Rows = p.BlockRows()
	sameTile := p.Family == usual.Family && block.Rows == usual.Rows && block.Keys == usual.Keys && block.Stages == usual.Stages
	sameBlocks := sameTile && block.Warps == usual.Warps
	halfTile := block // with as many keys again
	halfTile.Keys *= 2
	plain := p.Family == plan.SM90 && s.Masks.Causal && s.Masks.Window == 0 && s.Masks.SoftCap == 0 && !s.RotatesKeys() // as were timed
	prompts := p.Kind == spec.Prefill && plain
	halfRows := p.Family == usual.Family && 2*p.Rows == usual.Rows && p.Keys == usual.Keys && p.Stages == usual.Stages && most.Query*s.Model.Group() <= p.Rows
	switch {
	case p.KeysAhead:
		ahead, err := plan.Choose(p.Reads(s), p.Kind, p.Targets[0])
		if err != nil || block != ahead.Layout().Tile {
			return math.Inf(1)
		}
		if usual.RotatesApart() {
			return apartAheadGain
		}
		return aheadGain
	case p.ExchangesKeys(s):
		if !sameBlocks {
			return math.Inf(1)
		}
		return exchangeGain
	case p.Kind == spec.Prefill && usual.RotatesOwn() && p.RotatesApart() && s.Model.Group() != 1 && s.Model.Group() != 4:
		// Of a token's heads rotators take as many at a time as divide them, which the model does not count. Timed are one and four (H200,
		// 2026-11-28), and three at a time of three, where it takes 12 to 17 percent longer for 128 to 256 tokens.
		return math.Inf(1)
	case sameTile && p.AlignsQueries && !usual.AlignsQueries && s.Model.HeadDim == 128:
		if p.Cluster == 2 {
			return alignedPairGain
		}
		return alignedGain
	case sameBlocks && p.Cluster == 2 && p.Kind == spec.Extend && s.Model.HeadDim > 64:
		return pairGain
	case sameBlocks && p.Cluster == 2 && prompts && (s.Model.HeadDim == 128 || s.Model.HeadDim == 256 && s.Model.Group() >= 4) && most.Keys <= longestPairPrompt:
		return promptPairGain
	case prompts && s.Model.HeadDim == 128 && halfTile == usual.Layout().Tile && p.Cluster == 1 && most.Keys <= p.Keys:
		return halfTileGain
	case p.Kind == spec.Extend && plain && halfRows:
		return halfRowsGain
	}
	return PredictedGain
}

// unknownGPUs stand for the GPUs of a target that have no table: they differ in size
// most of all, so the best-known one and half of it.
func unknownGPUs(t spec.Target) []plan.Ceilings {
	c := plan.NominalCeilings(t)
	return []plan.Ceilings{c, {Multiprocessors: c.Multiprocessors / 2, Read: c.Read / 2, Product: c.Product / 2}}
}

// Predict is what the cost model chooses for a GPU of a target that has no table: an
// entry without a GPU and without times. Sequences are cut as usual: which cut is the best
// depends on the batch, which is no part of a choice. What is left are tiles that a
// sequence of few query tokens would leave half empty, and who rotates its queries.
func Predict(s spec.Spec, target spec.Target) (Entry, error) {
	e := Entry{Identity: Identity{Spec: s.Name, Target: target}}
	for _, kind := range KindsOf(s) {
		if kind == spec.SharedDecode {
			continue // its time depends on who shares, which no length tells
		}
		k, err := predictKind(s, kind, target)
		if err != nil {
			return Entry{}, err
		}
		e.Kinds = append(e.Kinds, k)
	}
	return e, nil
}

func predictKind(s spec.Spec, kind spec.Kind, target spec.Target) (KindTable, error) {
	plans, err := plan.Alternatives(s, kind, target)
	if err != nil {
		return KindTable{}, err
	}
	k := KindTable{Kind: kind, Default: plans[0].Layout()}
	buckets := Buckets(s, kind)
	for i, b := range buckets {
		cases := within(b, s, kind, Cases(s, kind))
		best := Choice{Bucket: b, Setting: k.Usual()}
		for _, p := range plans[1:] {
			gain, sure := foretell(s, p, plans[0], cases)
			if sure && gain > best.Gain && fillsPairs(s, p, plans[0], cases, fewestQueries(kind, buckets, i)) {
				best.Layout, best.Gain = p.Layout(), gain
			}
		}
		k.Choices = append(k.Choices, best)
	}
	return k, nil
}

// fewestQueries is the fewest query tokens of the sequences of a bucket. Of a prompt they are its keys as well, by which buckets of
// longer ones go.
func fewestQueries(kind spec.Kind, buckets []Bucket, i int) int {
	b, most := buckets[i], 0
	for _, before := range buckets[:i] {
		if kind == spec.Prefill {
			most = max(most, before.Query, before.Keys)
			continue
		}
		if before.Query != 0 && (b.Query == 0 || before.Query < b.Query) && (before.Keys == 0 || b.Keys != 0 && before.Keys >= b.Keys) {
			most = max(most, before.Query)
		}
	}
	return most + 1
}

// fillsPairs is whether a plan by two blocks loses nowhere on sequences of so few query tokens, alone: a bucket's cases may fill both
// blocks where others of its sequences leave one half empty. A prompt of one tile of keys has none whose copy two blocks would share
// under another's products: those of 128 tokens take up to 4 percent longer so (H200, 2026-11-28), which the model does not know.
// (Keys that are rotated ahead are another choice.)
func fillsPairs(s spec.Spec, p, usual plan.Plan, cases []Case, query int) bool {
	if p.Cluster < 2 || p.KeysAhead {
		return true
	}
	if p.Kind == spec.Prefill {
		return query > p.Keys || p.ExchangesKeys(s) // of raw keys blocks share the rotation
	}
	for _, c := range cases {
		c.Batch, c.Query = 1, query
		for _, gpu := range unknownGPUs(p.Targets[0]) {
			if ratio(s, p, usual, c, gpu) > 1+mostLoss {
				return false
			}
		}
	}
	return true
}

// ratio is a plan's time over the default's, as the model foretells them.
func ratio(s spec.Spec, p, usual plan.Plan, c Case, gpu plan.Ceilings) float64 {
	seconds := func(p plan.Plan) float64 {
		return plan.Predict(s, p, plan.Cut{}, ShapeOf(c.Case), gpu).Time.Seconds()
	}
	return seconds(p) / seconds(usual)
}

// foretell is the least gain of a plan over the default on any of the GPUs that may be
// meant, and whether it is enough.
func foretell(s spec.Spec, p, usual plan.Plan, cases []Case) (gain float64, sure bool) {
	gain = math.Inf(1)
	var most Bucket
	for _, c := range cases {
		shape := ShapeOf(c.Case)
		most = Bucket{max(most.Query, shape.Query), max(most.Keys, shape.Keys)}
	}
	for _, gpu := range unknownGPUs(p.Targets[0]) {
		sum := 0.0
		for _, c := range cases {
			r := ratio(s, p, usual, c, gpu)
			if r > 1+mostLoss {
				return 0, false
			}
			sum += math.Log(r)
		}
		gain = min(gain, math.Expm1(-sum/float64(len(cases))))
	}
	return gain, gain >= enough(s, p, usual, most)
}
