package plan

import (
	"math"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/rope"
)

// BoundsScores reports specs whose soft cap keeps exponents where family sm90's kinds of many rows subtract nothing from them, as those of
// all published models do: weights and what they add up to are then within their range, no row looks for a maximum, and no scores
// are computed once more.
func BoundsScores(s spec.Spec) bool {
	const most = 80 // as an exponent of 2
	return s.Masks.SoftCap > 0 && s.Masks.SoftCap*math.Log2E <= most && s.Model.DType == spec.BF16
}

// CapsTogether reports whether family sm90's kernels of a kind of many rows cap four scores by one reciprocal, where the unit for these and for
// exponentials sets the pace: beside the products of 256 dimensions extend takes up to 2 percent longer so (H200, 2026-11-28), and of baked
// keys of 128 shared decode spills 44 bytes (nvrtc 13.0.88).
func CapsTogether(s spec.Spec, kind spec.Kind) bool {
	spills := s.Cache.Encoding == spec.Baked && kind == spec.SharedDecode && s.Model.VHeadDim == 128
	return s.Masks.SoftCap > 0 && s.Model.VHeadDim <= 128 && !spills
}

// usualCap is the highest cap of a published model, about: cap_scores of templates/tile/mask.cuh does more for higher ones.
const usualCap = 64

// roomToCap reports plans that leave registers to cap scores with, where a spec has that: the others of family sm90 spill 8 bytes and
// more, of which raw keys of 256 dimensions have over 1000 (nvrtc 13.0.88).
func roomToCap(s spec.Spec, p Plan) bool {
	if s.Masks.SoftCap == 0 || p.Family != SM90 || !manyRows(p.Kind) || p.BlockRows() < apartRows {
		return true
	}
	m, window, high := s.Model, s.Masks.Window > 0, s.Masks.SoftCap > usualCap
	raw, bounded, wide := p.Reads(s).RotatesKeys(), BoundsScores(s), m.VHeadDim > 128
	switch {
	case raw && m.HeadDim == 128:
		wholeHalves := s.Rope.RotaryDim == m.HeadDim && s.Rope.Pairing == rope.Half
		return p.RotatesApart() && p.Keys == 64 && wholeHalves && !high
	case raw:
		return m.HeadDim < 128
	case bounded && p.RotatesOwn():
		return !window
	case bounded && p.AlignsQueries && wide:
		return p.Keys == 64 && !window
	case bounded && p.AlignsQueries && m.VHeadDim == 128: // others spill nothing where four scores are capped together, but take up to 9 percent longer than by 12 warps
		return p.Keys == 64
	case bounded:
		return true
	case p.RotatesOwn(), wide && high:
		return false
	case wide && p.RotatesApart():
		return p.AlignsQueries && !window && s.Cache.PageSize > smallestPage
	case wide:
		return !window || p.Kind == spec.Extend && p.Cluster == 1
	case m.VHeadDim == 128 && p.Kind == spec.Extend:
		return p.Keys == 64
	}
	return true
}
