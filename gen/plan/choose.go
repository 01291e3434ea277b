package plan

import (
	"cmp"
	"errors"
	"fmt"
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
	if i := slices.IndexFunc(fits, func(p Plan) bool { return roomToCap(s, p) }); i > 0 {
		fits = fits[i:]
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
