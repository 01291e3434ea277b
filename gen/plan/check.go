package plan

import (
	"fmt"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
)

// mostAccumulators is the most registers that a thread's outputs and scores may take in a plan
// with tiles: more leave too few for the rest.
const mostAccumulators = 192

// Misfit says why a plan can't be a kernel: what is wrong with a field of its tile.
type Misfit struct{ Field, Msg string }

func (m *Misfit) Error() string { return m.Field + ": " + m.Msg }

// refusal makes a [Misfit], so that checks read as sentences.
type refusal func(field, format string, args ...any) *Misfit

// check says why a plan with tiles can't be a kernel; nil where it can.
func check(s spec.Spec, p Plan) *Misfit {
	var fail refusal = func(field, format string, args ...any) *Misfit {
		return &Misfit{field, fmt.Sprintf(format, args...)}
	}
	m := s.Model
	if p.Rows < m.Group() {
		return fail("rows", "a tile of %d rows can't hold one token's %d query heads of a KV head", p.Rows, m.Group())
	}
	if p.Family == SM90 {
		return checkSM90(s, p, fail)
	}
	warpRows := p.Rows
	if p.Kind != spec.Decode {
		if p.Rows%(16*p.Warps) != 0 {
			return fail("rows", "%d rows are not a multiple of 16 for each of %d warps", p.Rows, p.Warps)
		}
		warpRows = p.Rows / p.Warps
	}
	if n := warpRows / 16 * (p.Keys + m.VHeadDim) / 2; n > mostAccumulators {
		return fail("rows", "%d rows a warp, %d keys and a V head dim of %d take %d registers a thread for scores and outputs; %d at most",
			warpRows, p.Keys, m.VHeadDim, n, mostAccumulators)
	}
	loaders := p.Threads()
	if p.Kind == spec.Decode {
		loaders = 32
	}
	// A thread copies 16 bytes of a row at a time; rotated rows go by 32 bytes.
	for _, unit := range []struct{ rows, columns int }{
		{p.Rows, m.HeadDim / 16}, {p.Keys, m.HeadDim / 16}, {p.Keys, m.HeadDim / 8}, {p.Keys, m.VHeadDim / 8},
	} {
		if step := loaders / unit.columns; unit.rows%step != 0 {
			return fail("warps", "%d threads copy %d rows at a time, which does not divide %d", loaders, step, unit.rows)
		}
	}
	return checkShared(p, fail)
}

func checkShared(p Plan, fail refusal) *Misfit {
	if limit := limits[p.Targets[0]].SharedPerBlock; p.Shared > limit {
		return fail("stages", "%d rows, %d keys and %d stages need %d bytes of shared memory; %s has %d",
			p.Rows, p.Keys, p.Stages, p.Shared, p.Targets[0], limit)
	}
	return nil
}

func checkSM90(s spec.Spec, p Plan, fail refusal) *Misfit {
	const warpgroupRows = 64
	decode := p.Kind == spec.Decode
	dim, helpers := s.Model.VHeadDim, sm90DecodeHelpers(s)
	registers := accumulators(s.Model, p)
	if !decode {
		registers += p.Keys / 4 // one tile's weights, under the scores of the next
	}
	switch {
	case decode && registers > mostAccumulators:
		return fail("rows", "%d rows, %d keys and a V head dim of %d take %d registers a thread for scores and outputs; %d at most",
			p.Rows, p.Keys, dim, registers, mostAccumulators)
	case registers > mostAccumulators:
		return fail("keys", "%d keys and a V head dim of %d take %d registers a thread for scores, weights and outputs; %d at most",
			p.Keys, dim, registers, mostAccumulators)
	case decode && (p.Warps <= helpers || p.Warps > 16):
		return fail("warps", "family sm90 decodes with %d warps that copy, rotate and merge and one to %d more, not %d in all", helpers, 16-helpers, p.Warps)
	case decode && p.Stages%(p.Warps-helpers) != 0:
		return fail("stages", "family sm90 decodes with a multiple of %d stages, for its %d warps less the %d that copy, rotate and merge, not %d",
			p.Warps-helpers, p.Warps, helpers, p.Stages)
	case s.RotatesKeys() && p.Keys%(1<<abi.RopeLowBits) != 0:
		return fail("keys", "family sm90 rotates raw keys %d at a time, which does not divide %d", 1<<abi.RopeLowBits, p.Keys)
	case p.Keys/min(p.Keys, s.Cache.PageSize) > 32:
		return fail("keys", "family sm90 copies a tile of %d keys in at most 32 pages, not pages of %d", p.Keys, s.Cache.PageSize)
	case decode && p.Keys > 128:
		return fail("keys", "family sm90 decodes with tiles of 16 to 128 keys, not %d", p.Keys)
	case !decode && (p.Rows%warpgroupRows != 0 || p.BlockRows() > 3*warpgroupRows):
		clusters := ""
		if canCluster(s, p.Kind) {
			clusters = fmt.Sprintf(", or of %d for two blocks", clusterRows)
		}
		return fail("rows", "family sm90 has tiles of 64, 128 or 192 rows%s, not %d", clusters, p.Rows)
	case p.BlockRows() < s.Model.Group():
		return fail("rows", "a block's %d rows of %d can't hold one token's %d query heads of a KV head", p.BlockRows(), p.Rows, s.Model.Group())
	case !decode && p.Rows == ownRows && (s.RotatesKeys() || p.Keys != ownKeys || s.Model.HeadDim > ownDims):
		return fail("rows", "family sm90 has tiles of %d rows for %d keys that need no rotation, of at most %d dimensions; these are %d of %d",
			ownRows, ownKeys, ownDims, p.Keys, s.Model.HeadDim)
	case !decode && p.Warps != attendWarps(p.BlockRows()) && !p.RotatesApart():
		apart, rows := "", p.BlockRows()
		if rows == apartRows && canAlign(s, p.Kind) {
			apart = fmt.Sprintf(", or %d to align queries and rotate them by a warpgroup", attendWarps(rows)+apartWarps)
		} else if rows == apartRows && canRotateApart(s, p.Kind) {
			what := "queries"
			if s.RotatesKeys() {
				what = "keys"
			}
			apart = fmt.Sprintf(", or %d to rotate %s by a warpgroup", attendWarps(rows)+apartWarps, what)
		}
		return fail("warps", "family sm90 has four warps that copy and rotate, and four for each 64 rows: %d for %d rows%s, not %d",
			attendWarps(rows), rows, apart, p.Warps)
	case p.ExchangesKeys(s) && !p.RotatesApart():
		return fail("warps", "two blocks that share tiles of %d rows and exchange raw keys have %d warps each, four to rotate and four to copy and give, not %d",
			p.Rows, attendWarps(apartRows)+apartWarps, p.Warps)
	case !decode && p.Keys != 64 && p.Keys != 128:
		return fail("keys", "family sm90 has tiles of 64 or 128 keys, not %d", p.Keys)
	case s.Cache.PageSize < p.Keys && p.Keys%s.Cache.PageSize != 0:
		return fail("keys", "%d keys are not a whole number of pages of %d", p.Keys, s.Cache.PageSize)
	case s.Cache.PageSize > p.Keys && s.Cache.PageSize%p.Keys != 0: // some tile would begin in one page and end in the next, and a box is of one
		return fail("keys", "a page of %d is not a whole number of tiles of %d keys", s.Cache.PageSize, p.Keys)
	}
	return checkShared(p, fail)
}
