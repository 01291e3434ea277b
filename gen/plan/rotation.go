package plan

import (
	"math"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
)

// How family sm90 rotates: what of a spec and a kind decides it.

// canAlign reports where family sm90 can align an item's queries, so that their rotation for a
// run is the same for all rows, and short: where fp16, which aligned queries are, rounds less
// than the spec's elements, where results have room for them (which pairs alone use now: see AlignsPairs), and where there are registers. It
// is worth it where an item has many runs.
func canAlign(s spec.Spec, kind spec.Kind) bool {
	return kind == spec.Extend && s.Cache.Encoding == spec.Segment && s.Rope.RotaryDim > 0 && s.Model.DType == spec.BF16 &&
		s.Model.VHeadDim >= s.Model.HeadDim
}

// ScalesQueries reports where family sm90 scales queries to exponents of 2 as it rotates them, so that the softmax
// need not: where all of them is rotated, so that nothing is rounded once more for that (but dimensions that a rotation leaves as they
// were are rounded, too); where what they are in their products with keys has the range; and where it is
// faster: with whole tiles in a loop without branches (see [Plan.WholeTiles]: prefill of 128 has it no more), 128 dimensions take 1 to 5 percent less (prefill and extend, H200, 2026-11-26; without
// that loop it was 1 more), and 64 dimensions 3. Of aligned queries the factor is in the elements of their rotation. Where scores are capped, they are
// scaled to what capping takes, but for aligned ones.
func (p Plan) ScalesQueries(s spec.Spec) bool {
	return p.Family == SM90 && manyRows(p.Kind) && s.Model.HeadDim <= 128 && s.Model.DType == spec.BF16 && s.Rope.RotaryDim == s.Model.HeadDim &&
		(!FP16Keys(s, p.Family) || p.Kind == spec.Extend && p.RotatesApart() && queriesTakeFactor(s)) &&
		(!p.AlignsQueries || s.Masks.SoftCap == 0 && rotationTakesFactor(s))
}

// FP16QueryScale scales queries that are fp16, in their products with keys (FP16Keys) or until
// their last rotation (Plan.AlignsQueries), so that elements up to 2^19 in magnitude are within range.
const FP16QueryScale = 1. / 16

// exponentFactor is what makes a spec's scores exponents of 2, or where they are capped those that cap_scores of templates/tile/mask.cuh takes.
func exponentFactor(s spec.Spec) float64 {
	score, _ := s.Rope.ScoreFactors(s.Model.HeadDim)
	factor := s.Scale * score * math.Log2E
	if s.Masks.SoftCap > 0 {
		factor *= 2 / s.Masks.SoftCap
	}
	return factor
}

// queriesTakeFactor reports whether queries that are fp16 in their products with keys have about the range that FP16QueryScale leaves them
// where they are multiplied by what makes scores exponents in its place, as by the usual scale: elements up to 2^17.
func queriesTakeFactor(s spec.Spec) bool {
	factor := exponentFactor(s)
	return FP16QueryScale/2 <= factor && factor <= FP16QueryScale*8
}

// rotationTakesFactor reports whether what makes scores of aligned queries exponents is well within the range of fp16, which
// the elements of their rotation are: see rotation_factor in templates/tile/item.cuh, whose bounds are twice as far.
func rotationTakesFactor(s spec.Spec) bool {
	factor := exponentFactor(s) / FP16QueryScale
	return 0x1p-11 <= factor && factor <= 0x1p13
}

// AlignsPairs reports where aligned queries are rotated for a run in pairs of fp16, and not by the
// matrix units: see templates/tile/aligned_queries.cuh.
func AlignsPairs(s spec.Spec) bool { return s.Model.HeadDim > 128 }

// canRotateApart reports the kinds of family sm90 that a warpgroup of its own can rotate for:
// aligned queries, prefill's, or raw keys as fp16, which takes fewer registers.
func canRotateApart(s spec.Spec, kind spec.Kind) bool {
	return canAlign(s, kind) || rotatesWholeItems(s, kind) || manyRows(kind) && FP16Keys(s, SM90)
}

// rotatesWholeItems reports prefill whose queries a warpgroup of its own rotates: its items have few tiles and most of them one
// rotation, for which two warps take longer than such an item's products do. The heads of a token and many copies take
// registers that there are not.
func rotatesWholeItems(s spec.Spec, kind spec.Kind) bool {
	m := s.Model
	return kind == spec.Prefill && !s.RotatesKeys() && s.Rope.RotaryDim > 0 && m.Group() <= 8 && !manyCopies(s)
}

// GivesQueriesEarly reports plans of which each warpgroup gives an item's queries back as soon as it has its last weights: where
// there is room for those of one item, the next ones come there under its last outputs.
func (p Plan) GivesQueriesEarly(s spec.Spec) bool {
	return p.RotatesApart() && !p.AlignsQueries && !s.RotatesKeys() && p.Queries == 1
}

// canRotateAhead reports where raw keys may be rotated ahead of a kernel that many rows make
// read them many times.
func canRotateAhead(s spec.Spec, kind spec.Kind, family Family) bool {
	return family == SM90 && (kind == spec.Prefill || kind == spec.Extend) && s.RotatesKeys() && slices.Contains(s.Kinds, spec.Materialise)
}

// FP16Keys reports whether kernels of a family rotate raw keys of bf16 as fp16.
func FP16Keys(s spec.Spec, family Family) bool {
	return family == SM90 && s.RotatesKeys() && s.Model.DType == spec.BF16
}
