package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
)

// All plans every kind of the spec for every target. Targets for which a kind's
// plan is the same share it. Errors name the field of the spec that can't be met.
func All(s spec.Spec) ([]Plan, error) {
	var plans []Plan
	var errs []error
	for _, kind := range s.Kinds {
		first := len(plans)
		for _, target := range s.Targets {
			p, err := Choose(s, kind, target)
			if err != nil {
				if same := func(e error) bool { return e.Error() == err.Error() }; !slices.ContainsFunc(errs, same) {
					errs = append(errs, err) // once, where it is not about the target
				}
				continue
			}
			plans = share(plans, first, p)
		}
	}
	return plans, errors.Join(errs...)
}

// share adds p to the plans, or its target to the equal plan at or after first.
func share(plans []Plan, first int, p Plan) []Plan {
	for i := first; i < len(plans); i++ {
		q := plans[i]
		q.Targets, q.Fallback = p.Targets, p.Fallback
		if reflect.DeepEqual(p, q) {
			plans[i].Targets = append(plans[i].Targets, p.Targets...)
			plans[i].Fallback = cmp.Or(plans[i].Fallback, p.Fallback)
			return plans
		}
	}
	return append(plans, p)
}

// Choose plans one kind for one target: the tile given in the spec, completed,
// in the first family that can have it. Without one it is, of the kind's usual tiles,
// the first of which two blocks fit on a multiprocessor, or else the first that fits.
func Choose(s spec.Spec, kind spec.Kind, target spec.Target) (Plan, error) {
	if usualTiles(s, kind, SM80) == nil {
		p := Plan{Kind: kind, Family: SM80, Targets: []spec.Target{target}, Warps: 4, MinBlocks: 1}
		if kind == spec.Schedule { // by one block
			p.Warps, p.Shared = abi.ScheduleWarps, scheduleShared
		}
		return p, nil
	}
	fallback := ""
	var refused error // by the family that suits the target
	if target == "sm_90a" {
		fallback = withoutSM90(s)
		if fallback == "" {
			p, err := chooseIn(s, kind, target, SM90)
			if err == nil {
				return p, nil
			}
			refused, fallback = err, err.Error()
		}
	}
	p, err := chooseIn(s, kind, target, SM80)
	if err != nil && refused != nil && s.Tiles[kind] != (spec.Tile{}) {
		return Plan{}, refused // a tile by hand is likely meant for it
	}
	p.Fallback = fallback
	return p, err
}

// chooseIn is the preferred plan of one family, as [Choose] says.
func chooseIn(s spec.Spec, kind spec.Kind, target spec.Target, family Family) (Plan, error) {
	var fits []Plan
	var why *Misfit // the tile that is preferred to all others can't be
	for i, usual := range usualTiles(s, kind, family) {
		tile := complete(s.Tiles[kind], usual)
		if family == SM90 && manyRows(kind) && s.Tiles[kind].Warps == 0 && blockRows(s, kind, tile) != usual.Rows {
			tile.Warps = attendWarps(blockRows(s, kind, tile)) // which go by the rows
		}
		p := newPlan(s, kind, target, family, tile)
		if s.Tiles[kind] == (spec.Tile{}) && i == 0 && byTwoBlocks(s, kind, family) {
			p.MinBlocks = 2
		}
		if misfit := check(s, p); misfit == nil {
			fits = append(fits, p)
		} else if why == nil {
			why = misfit
		}
	}
	if len(fits) == 0 && s.Tiles[kind] == (spec.Tile{}) {
		return Plan{}, s.ErrorAt("model", fmt.Sprintf("family %s has no %s of this shape: %s: %s", family, kind, why.Field, why.Msg))
	}
	if len(fits) == 0 {
		msg := why.Msg
		if family == SM80 && target != "sm_90a" && slices.Contains(s.Targets, "sm_90a") {
			if p, err := Choose(s, kind, "sm_90a"); err == nil && p.Family == SM90 {
				msg += ", by family sm80; sm_90a can have this tile: make it the spec's only target"
			}
		}
		return Plan{}, s.ErrorAt(fmt.Sprintf("tiles.%s.%s", kind, why.Field), msg)
	}
	// With two blocks, one's softmax hides under the other's products. (An sm90
	// block has warpgroups for that.)
	for _, p := range fits {
		if family == SM80 && kind != spec.Decode && BlocksPerSM(p, target, 0) >= 2 {
			return p, nil
		}
	}
	return fits[0], nil
}

// smallestPage is the tokens of a tile's block in family sm90; larger pages, which are powers of
// two, are whole blocks.
const smallestPage = 8

// withoutSM90 says why a spec can't have kernels of family sm90; "" where it can.
func withoutSM90(s spec.Spec) string {
	if s.Cache.PageSize < smallestPage {
		return fmt.Sprintf("TMA copies pages of %d tokens and more, not %d", smallestPage, s.Cache.PageSize)
	}
	return ""
}

// complete fills the fields that are not given from the usual tile.
func complete(given, usual spec.Tile) spec.Tile {
	for _, f := range []struct{ to, from *int }{
		{&given.Rows, &usual.Rows}, {&given.Keys, &usual.Keys}, {&given.Stages, &usual.Stages}, {&given.Warps, &usual.Warps},
	} {
		if *f.to == 0 {
			*f.to = *f.from
		}
	}
	return given
}

// manyRows reports a kind whose items fill a tile of many rows.
func manyRows(kind spec.Kind) bool {
	return kind == spec.Prefill || kind == spec.Extend || kind == spec.SharedDecode
}

// usualTiles are a kind's tiles, the preferred one first; nil for kinds without tiles.
func usualTiles(s spec.Spec, kind spec.Kind, family Family) []spec.Tile {
	m := s.Model
	switch {
	case family == SM90 && manyRows(kind) && m.HeadDim > 128:
		// Of 128 rows there is room for one tile of queries, so that a further rotation waits for
		// the use of the one before: it must be short, and that of aligned queries is. Otherwise
		// too, but for shared decode's, twice the rows gain more. Capped scores and a window take
		// registers, and so do the heads of a token.
		small := spec.Tile{Rows: 64, Keys: 64, Stages: 2, Warps: 8}
		if canAlign(s, kind) {
			return []spec.Tile{{Rows: apartRows, Keys: 64, Stages: 2, Warps: attendWarps(apartRows) + apartWarps}, small}
		}
		heads := 8
		if s.Masks.Window > 0 && m.VHeadDim > 128 {
			if heads = 6; s.Cache.Encoding == spec.Baked {
				heads = 0 // spills 16 bytes
			}
		}
		if kind == spec.SharedDecode || s.RotatesKeys() || s.Masks.SoftCap > 0 || m.Group() > heads {
			return []spec.Tile{small}
		}
		return []spec.Tile{{Rows: 128, Keys: 64, Stages: 2, Warps: 12}, small}
	case family == SM90 && manyRows(kind):
		small := spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 12}
		if s.Masks.SoftCap > 0 {
			return []spec.Tile{small} // capping 128 keys' scores takes more registers than there are
		}
		tiles := []spec.Tile{{Rows: 128, Keys: 128, Stages: 2, Warps: 12}, small}
		if kind == spec.Extend && !s.RotatesKeys() && shortWindow(s) {
			// What a tile of query tokens sees then ends early in its second tile of 128 keys: of 64 keys extend takes 1 to 22 percent
			// less (H100, 2026-11-27, window 128, head dims 64 and 128).
			return append([]spec.Tile{{Rows: 128, Keys: 64, Stages: 3, Warps: 12}, small}, tiles...)
		}
		if m.HeadDim == 64 && !s.RotatesKeys() {
			if kind == spec.Prefill {
				// Exponentials then take as long as products: two warpgroups do them while a third multiplies.
				return append([]spec.Tile{{Rows: ownRows, Keys: ownKeys, Stages: 3, Warps: attendWarps(ownRows)}}, tiles...)
			}
			tiles[0].Stages = 3 // for which there is room; extend takes 2 to 5 percent less time
			// Products take half as long as of 128 dimensions, and by arithmetic rotations show more beside them.
			// But an item begins later, by an alignment: with a window of 512, 12 warps take 1 to 7 percent less (H100, 2026-11-27).
			if canAlign(s, kind) && !manyCopies(s) && (s.Masks.Window == 0 || s.Masks.Window > fewKeys) {
				apart := tiles[0]
				apart.Warps += apartWarps
				return append([]spec.Tile{apart}, tiles...)
			}
		}
		if rotatesWholeItems(s, kind) || kind != spec.SharedDecode && m.VHeadDim <= 128 && FP16Keys(s, family) && s.Rope.RotaryDim >= fewRotated {
			keys := 128
			if manyCopies(s) {
				keys = 64
			}
			return append([]spec.Tile{{Rows: apartRows, Keys: keys, Stages: 2, Warps: attendWarps(apartRows) + apartWarps}}, tiles...)
		}
		return tiles
	case family == SM90 && kind == spec.Decode:
		rows, helpers := decodeRows(m), sm90DecodeHelpers(s)
		small := spec.Tile{Rows: rows, Keys: 32, Stages: 4, Warps: helpers + 2} // fewer results to merge
		if s.RotatesKeys() && wideDecode(m) {
			return []spec.Tile{small}
		}
		tiles := []spec.Tile{
			{Rows: rows, Keys: 64, Stages: 4, Warps: helpers + 4},
			{Rows: rows, Keys: 32, Stages: 4, Warps: helpers + 4},
			small,
		}
		if s.RotatesKeys() {
			return tiles
		}
		if byTwoBlocks(s, kind, family) {
			return append([]spec.Tile{{Rows: rows, Keys: 32, Stages: 4, Warps: helpers + 4}}, tiles...)
		}
		// Memory gives three tiles of 32 KB in flight as fast as four, or faster. More rows
		// have registers for the scores of fewer keys at a time.
		wide := rows / 16
		keys := max(1, 4/wide) * 16
		if m.HeadDim+m.VHeadDim <= 128 && wide < 4 {
			keys *= 2
		}
		return append([]spec.Tile{{Rows: rows, Keys: keys, Stages: 3 * wide, Warps: helpers + 3}}, tiles...)
	case manyRows(kind) && m.VHeadDim > 128:
		// One block of rows a warp: the outputs of two take more registers than there are.
		keys, stages := 64, 1
		if s.Masks.SoftCap > 0 || s.Masks.Window > 0 {
			keys, stages = 32, 2 // capping and a window take registers too
		}
		return []spec.Tile{
			{Rows: 128, Keys: keys, Stages: stages, Warps: 8},
			{Rows: 64, Keys: keys, Stages: stages, Warps: 4},
		}
	case manyRows(kind):
		// Two m16 blocks of rows a warp: each fragment of K and V that is read from
		// shared memory then feeds two products, without which shared memory is
		// slower than the matrix units.
		if m.VHeadDim == 128 && s.Masks.Window > 0 && bits.OnesCount(uint(m.Group())) > 1 {
			// A window needs each row's token, and a division by the group for that takes registers.
			return []spec.Tile{
				{Rows: 128, Keys: 32, Stages: 2, Warps: 4},
				{Rows: 128, Keys: 32, Stages: 1, Warps: 4},
			}
		}
		return []spec.Tile{
			{Rows: 128, Keys: 64, Stages: 2, Warps: 4},
			{Rows: 128, Keys: 64, Stages: 1, Warps: 4},
			{Rows: 128, Keys: 32, Stages: 1, Warps: 4},
		}
	case kind == spec.Decode:
		// Small tiles, many in flight: a warp's copies are what hides the latency.
		rows := decodeRows(m)
		return []spec.Tile{
			{Rows: rows, Keys: 16, Stages: 2, Warps: 4},
			{Rows: rows, Keys: 16, Stages: 2, Warps: 2},
			{Rows: rows, Keys: 16, Stages: 1, Warps: 2}, // all that 64 rows of 256 dimensions leave on a target of 99 KiB
		}
	}
	return nil
}

// shortWindow reports windows that leave an item little more than a tile of keys.
func shortWindow(s spec.Spec) bool { return s.Masks.Window > 0 && s.Masks.Window <= 128 }

// byTwoBlocks reports decode whose usual tile is for two blocks a multiprocessor: an item mostly waits for its first keys,
// under which the other block's item is at work. (H100, 2026-11-27, window 128, head dim 64: 8 to 27 percent less time. Head dim 128 takes
// as long by one block, and 64 with a window of 512.)
func byTwoBlocks(s spec.Spec, kind spec.Kind, family Family) bool {
	m := s.Model
	return family == SM90 && kind == spec.Decode && shortWindow(s) && m.HeadDim+m.VHeadDim <= 128 && decodeRows(m) == 16 && !s.RotatesKeys() && s.Masks.SoftCap == 0
}

// manyCopies reports caches of which a tile of 128 keys takes sixteen pages, each with its heads' places or beside
// the look for where a window cuts: more registers than copiers beside four rotators have.
func manyCopies(s spec.Spec) bool {
	return s.Cache.PageSize <= smallestPage && (s.Cache.Layout == spec.HND || s.Masks.Window > 0)
}

// decodeRows is the fewest rows that hold one token's heads.
func decodeRows(m spec.Model) int { return roundUp(m.Group(), 16) }

func newPlan(s spec.Spec, kind spec.Kind, target spec.Target, family Family, t spec.Tile) Plan {
	p := Plan{Kind: kind, Family: family, Targets: []spec.Target{target}, Rows: t.Rows, Keys: t.Keys, Stages: t.Stages, Warps: t.Warps, Cluster: 1}
	if family == SM90 {
		p.Cluster = t.Rows / blockRows(s, kind, t)
		switch {
		case manyRows(kind) && p.Rows == ownRows:
			p.Rotators = 0
		case canRotateApart(s, kind) && p.BlockRows() == apartRows && t.Warps == attendWarps(apartRows)+apartWarps:
			p.Rotators = apartWarps
		default:
			p.Rotators = rotators(s, kind)
		}
		p.AlignsQueries = p.RotatesApart() && canAlign(s, kind)
		p.Folds = folds(s, p)
	}
	if family == SM90 && manyRows(kind) {
		p.KeyStages = p.Stages + 1
		if p.Queries = 2; p.RotatesOwn() || sharedBytes(s, p) > limits[target].SharedPerBlock {
			p.Queries = 1
		}
		if kind == spec.Extend && s.RotatesKeys() {
			p = withKeyStage(s, p, target)
		}
	}
	if family == SM90 && kind == spec.Decode {
		if p.Queries = 4; s.RotatesKeys() {
			p.Queries = 2 // one an item
		}
		// With room for two, the next item's results need not wait for the merge of these.
		if p.Results = 2; sharedBytes(s, p) > limits[target].SharedPerBlock {
			p.Results = 1
		}
		// Four levels are those of sixteen parts.
		for p.KeptLevels = 4; p.KeptLevels > 0 && sharedBytes(s, p) > limits[target].SharedPerBlock; {
			p.KeptLevels--
		}
	}
	p.Shared = sharedBytes(s, p)
	p.MinBlocks = 1
	return p
}

// withKeyStage is the plan with room for one more tile of keys, if need be in place of the second tile of queries:
// extend of raw keys waits for rotators, and these for keys. That takes 3 to 7 percent less over long contexts (H100), and 2 to
// 9 more where a block has many items of few tiles, whose queries come late then, as prefill's would.
func withKeyStage(s spec.Spec, p Plan, target spec.Target) Plan {
	deep := p
	deep.KeyStages++
	for ; deep.Queries > 0; deep.Queries-- {
		if sharedBytes(s, deep) <= limits[target].SharedPerBlock {
			return deep
		}
	}
	return p
}

// folds reports the plans of family sm90 whose items may have several parts: of the kinds whose
// sequences are cut, but for extend where warps beside the copiers that rotate raw keys leave no registers
// to fold results onto others.
func folds(s spec.Spec, p Plan) bool {
	return p.Kind == spec.Decode || p.Kind == spec.Extend && (!s.RotatesKeys() || p.RotatesApart())
}

// canAlign reports where family sm90 can align an item's queries, so that their rotation for a
// run is the same for all rows, and short: where fp16, which aligned queries are, rounds less
// than the spec's elements, where results have room for them (which pairs alone use now: see AlignsPairs), and where there are registers. It
// is worth it where an item has many runs.
func canAlign(s spec.Spec, kind spec.Kind) bool {
	return kind == spec.Extend && s.Cache.Encoding == spec.Segment && s.Rope.RotaryDim > 0 && s.Model.DType == spec.BF16 &&
		s.Model.VHeadDim >= s.Model.HeadDim && s.Masks.SoftCap == 0
}

// ScalesQueries reports where family sm90 scales queries to exponents of 2 as it rotates them, so that the softmax
// need not: where all of them is rotated, so that nothing is rounded once more for that (but dimensions that a rotation leaves as they
// were are rounded, too); where what they are in their products with keys has the range; and where it is
// faster: with whole tiles in a loop without branches, 128 dimensions take 1 to 5 percent less (prefill and extend, H200, 2026-11-26; without
// that loop it was 1 more), and 64 dimensions 3. Of aligned queries the factor is in the elements of their rotation.
func (p Plan) ScalesQueries(s spec.Spec) bool {
	return p.Family == SM90 && manyRows(p.Kind) && s.Model.HeadDim <= 128 && s.Model.DType == spec.BF16 && s.Rope.RotaryDim == s.Model.HeadDim &&
		s.Masks.SoftCap == 0 && (!FP16Keys(s, p.Family) || p.Kind == spec.Extend && p.RotatesApart() && queriesTakeFactor(s)) && (!p.AlignsQueries || rotationTakesFactor(s))
}

// FP16QueryScale scales queries that are fp16, in their products with keys (FP16Keys) or until
// their last rotation (Plan.AlignsQueries), so that elements up to 2^19 in magnitude are within range.
const FP16QueryScale = 1. / 16

// exponentFactor is what makes a spec's scores exponents of 2.
func exponentFactor(s spec.Spec) float64 {
	score, _ := s.Rope.ScoreFactors(s.Model.HeadDim)
	return s.Scale * score * math.Log2E
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
// aligned queries, prefill's, or raw keys as fp16, which takes fewer registers. Beside it consumers have
// none to cap scores with.
func canRotateApart(s spec.Spec, kind spec.Kind) bool {
	return canAlign(s, kind) || rotatesWholeItems(s, kind) || manyRows(kind) && FP16Keys(s, SM90) && s.Masks.SoftCap == 0
}

// rotatesWholeItems reports prefill whose queries a warpgroup of its own rotates: its items have few tiles and most of them one
// rotation, for which two warps take longer than such an item's products do. The heads of a token and many copies take
// registers that there are not.
func rotatesWholeItems(s spec.Spec, kind spec.Kind) bool {
	m := s.Model
	return kind == spec.Prefill && !s.RotatesKeys() && s.Rope.RotaryDim > 0 && m.HeadDim > ownDims && m.HeadDim <= 128 && m.VHeadDim <= 128 &&
		m.Group() <= 8 && s.Masks.SoftCap == 0 && !manyCopies(s)
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

const (
	apartWarps = 4   // that rotate, beside all others: a warpgroup
	apartRows  = 128 // of a block, for which four warpgroups share out the registers

	// Of three warpgroups each rotates its own queries: with scores, weights and outputs of so many keys and
	// dimensions they leave no registers to others.
	ownRows, ownKeys, ownDims = 192, 128, 64

	clusterRows = 256 // of a tile that a cluster of two blocks shares

	fewKeys = 512 // that an item sees, for which it is not worth aligning 64 dimensions of its queries

	// Of fewer rotated dimensions four rotators of raw keys have no unit for each, and spill up to 140 bytes in extend.
	fewRotated = 64
)

// canCluster reports the kinds of family sm90 of which two blocks can share an item: what one
// copies of K and V is then for both. Shared decode's rows are of members, not of tokens that
// follow each other. Of raw keys each block rotates its share of a tile and gives it to the other, for which there are
// warps where a warpgroup rotates.
func canCluster(s spec.Spec, kind spec.Kind) bool {
	return (kind == spec.Prefill || kind == spec.Extend) && (!s.RotatesKeys() || canRotateApart(s, kind))
}

// blockRows is how many of a tile's rows a block has in family sm90.
func blockRows(s spec.Spec, kind spec.Kind, t spec.Tile) int {
	if canCluster(s, kind) && t.Rows == clusterRows {
		return t.Rows / 2
	}
	return t.Rows
}

// attendWarps is the number of warps of family sm90 for many rows: four for each 64, and four
// that copy and rotate.
func attendWarps(rows int) int { return rows/16 + 4 }

// rotators is the number of warps of family sm90 that rotate: of the many rows' kinds
// queries and raw keys; of decode raw keys alone. With raw keys it is as many as there is
// room for: the rotations of a tile, [rotatorInstructions] for each 32 keys and 16
// dimensions, must be done in the time of its products or its copies. Extend, which rotates
// queries for each segment, has as many: of a warpgroup that attends, all warps wait for the
// one whose scheduler has the most other work, so that work is spread over schedulers.
func rotators(s spec.Spec, kind spec.Kind) int {
	switch {
	case kind == spec.Decode && s.RotatesKeys() && wideDecode(s.Model):
		return 2
	case kind == spec.Decode && s.RotatesKeys():
		return 4
	case kind == spec.Decode:
		return 0
	case s.RotatesKeys() || kind == spec.Extend && s.Cache.Encoding == spec.Segment:
		return 3 // of four helpers: one warp copies K and V
	}
	return 2
}

// wideDecode reports outputs and scores of a warp that decodes which need more registers
// than the 168 that a thread of more than eight warps has.
func wideDecode(m spec.Model) bool { return decodeRows(m) > 16 || m.VHeadDim > 128 }

// sm90DecodeHelpers is the number of warps of family sm90's decode that don't attend:
// they copy (two), rotate and merge.
func sm90DecodeHelpers(s spec.Spec) int { return 4 + rotators(s, spec.Decode) }

// DecodeShares is the number of warps of a plan for decode that share out an item's keys.
func DecodeShares(s spec.Spec, family Family, warps int) int {
	if family == SM90 {
		return warps - sm90DecodeHelpers(s)
	}
	return warps
}

// WithEncoding is the sibling of s that [spec.WithEncoding] makes, but for tiles given by hand
// that it cannot have on the spec's targets: such a tile has the warps of s, or, where it cannot
// have those either, is the planner's choice.
func WithEncoding(s spec.Spec, e spec.Encoding) spec.Spec {
	sibling := spec.WithEncoding(s, e)
	if e == s.Cache.Encoding {
		return sibling
	}
	fits := func(kind spec.Kind) bool {
		return !slices.ContainsFunc(s.Targets, func(target spec.Target) bool {
			_, err := Choose(sibling, kind, target)
			return err != nil
		})
	}
	for kind, tile := range s.Tiles {
		if fits(kind) {
			continue
		}
		if sibling.Tiles[kind] = tile; !fits(kind) {
			delete(sibling.Tiles, kind)
		}
	}
	return sibling
}
