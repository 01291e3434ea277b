package plan

import (
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
)

// space is the values that tuning tries for each knob of a kind in a family. A
// combination is a candidate if it passes every constraint of [Make]:
//
//   - a tile holds one token's query heads, and a warp whole blocks of 16 rows;
//   - a thread's scores and outputs leave registers for the rest;
//   - the threads that copy divide the rows that they copy;
//   - what the blocks of a multiprocessor ask for fits: shared memory, registers, threads;
//   - family sm90: its own rules of warps, stages and pages.
type space struct{ rows, keys, stages, warps, blocks []int }

func spaceOf(s spec.Spec, kind spec.Kind, family Family) space {
	decode := kind == spec.Decode
	switch {
	case family == SM90 && decode:
		h := sm90DecodeHelpers(s)
		return space{rows: []int{decodeRows(s.Model)}, keys: []int{32, 64, 128}, stages: []int{2, 3, 4, 5, 6, 8, 10}, warps: []int{h + 1, h + 2, h + 3, h + 4, h + 5, h + 6, h + 8}, blocks: []int{1, 2}}
	case family == SM90:
		return space{rows: []int{64, 128, 192, 256}, keys: []int{64, 128}, stages: []int{2, 3, 4}, warps: []int{8, 12, 16}, blocks: []int{1}}
	case decode:
		return space{rows: []int{decodeRows(s.Model)}, keys: []int{16, 32, 64}, stages: []int{1, 2, 3, 4}, warps: []int{2, 4, 8}, blocks: []int{1}}
	}
	return space{rows: []int{64, 128, 256}, keys: []int{32, 64, 128}, stages: []int{1, 2, 3}, warps: []int{4, 8}, blocks: []int{1}}
}

// Candidates are the plans that tuning may choose from for a kind with tiles on a
// target, without a plan twice: first the default, which is [Choose]'s, then every
// family's in a fixed order. Fields that the spec gives by hand are as it gives them.
func Candidates(s spec.Spec, kind spec.Kind, target spec.Target) ([]Plan, error) {
	if !slices.Contains(spec.TiledKinds, kind) {
		return nil, fmt.Errorf("plan: kind %s has no tile to choose", kind)
	}
	usual, err := Choose(s, kind, target)
	if err != nil {
		return nil, err
	}
	all := []Plan{usual}
	for _, family := range []Family{SM90, SM80} {
		sp := spaceOf(s, kind, family)
		for _, rows := range sp.rows {
			for _, keys := range sp.keys {
				for _, stages := range sp.stages {
					for _, warps := range sp.warps {
						for _, blocks := range sp.blocks {
							tile := complete(s.Tiles[kind], spec.Tile{Rows: rows, Keys: keys, Stages: stages, Warps: warps})
							for _, ahead := range []bool{false, true} {
								p, misfit := Make(s, kind, target, Layout{family, tile, blocks, ahead})
								if misfit == nil && !slices.ContainsFunc(all, p.sameLayout) {
									all = append(all, p)
								}
							}
						}
					}
				}
			}
		}
	}
	return all, nil
}

// Layout is what a plan of a kind with tiles is made from.
type Layout struct {
	Family    Family
	Tile      spec.Tile
	Blocks    int  // that a multiprocessor must hold; at least 1
	KeysAhead bool // see Plan.KeysAhead
}

func (l Layout) String() string {
	t := l.Tile
	text := fmt.Sprintf("%s_r%dk%ds%dw%d", l.Family, t.Rows, t.Keys, t.Stages, t.Warps)
	if l.Blocks > 1 {
		text += fmt.Sprintf("b%d", l.Blocks)
	}
	if l.KeysAhead {
		text += "a"
	}
	return text
}

// Layout is what the plan was made from.
func (p Plan) Layout() Layout {
	return Layout{p.Family, spec.Tile{Rows: p.Rows, Keys: p.Keys, Stages: p.Stages, Warps: p.Warps}, max(1, p.MinBlocks), p.KeysAhead}
}

func (p Plan) sameLayout(q Plan) bool { return p.Layout() == q.Layout() }

// Make is the plan of a layout, or what keeps it from being one.
func Make(s spec.Spec, kind spec.Kind, target spec.Target, l Layout) (Plan, *Misfit) {
	p := Plan{KeysAhead: l.KeysAhead}
	ahead := canRotateAhead(s, kind, l.Family)
	s = p.Reads(s)
	p = newPlan(s, kind, target, l.Family, l.Tile)
	p.MinBlocks, p.KeysAhead = l.Blocks, l.KeysAhead
	fail := func(field, format string, args ...any) (Plan, *Misfit) {
		return Plan{}, &Misfit{field, fmt.Sprintf(format, args...)}
	}
	switch {
	case l.Family != SM80 && l.Family != SM90:
		return fail("family", "%q is not sm80 or sm90", l.Family)
	case l.Family == SM90 && target != "sm_90a":
		return fail("family", "sm90 runs on sm_90a, not on %s", target)
	case l.Family == SM90 && withoutSM90(s) != "":
		return fail("family", "%s", withoutSM90(s))
	case l.KeysAhead && !ahead:
		return fail("keys_ahead", "only raw keys of family sm90's prefill and extend are rotated ahead, by a spec that has the kind %s", spec.Materialise)
	case l.Family == SM80 && l.Blocks > 1:
		return fail("blocks", "only family sm90 has more than one block a multiprocessor by plan; sm80's come by themselves")
	case l.Family == SM90 && kind != spec.Decode && l.Blocks > 1:
		return fail("blocks", "%s of family sm90 shares out a multiprocessor's registers as one block", kind)
	}
	if misfit := check(s, p); misfit != nil {
		return Plan{}, misfit
	}
	if have := BlocksPerSM(p, target, 0); have < l.Blocks {
		return fail("blocks", "a multiprocessor of %s holds %d such blocks, of %d threads and %d bytes of shared memory, not %d",
			target, have, p.Threads(), p.Shared, l.Blocks)
	}
	if least, most := fewestRegisters(s.Model, p), registerLimit(s, p); least > most {
		return fail("warps", "%d threads of %d blocks leave %d registers a thread, and scores, outputs and the rest take about %d",
			p.Threads(), l.Blocks, most, least)
	}
	return p, nil
}

// accumulators is the registers that a thread's outputs and scores take.
func accumulators(m spec.Model, p Plan) int {
	rows := p.Rows // of a warp
	switch {
	case p.Kind == spec.Decode:
	case p.Family == SM90:
		rows = 16
	default:
		rows = p.Rows / p.Warps
	}
	return rows / 16 * (p.Keys + m.VHeadDim) / 2
}

// fewestRegisters is what a thread needs at least, about: below that a kernel spills.
func fewestRegisters(m spec.Model, p Plan) int {
	const rest = 40 // addresses, softmax, one step's fragments
	return min(accumulators(m, p)+rest, mostRegisters)
}

const mostRegisters = 255 // of a thread

// registerLimit is the registers that a thread can have. Of family sm90's kinds of many rows it is a
// thread's that attends, to whom the others of three or four warpgroups give some of theirs:
// consumer_registers of templates/kernel/attend_sm90.cuh.
func registerLimit(s spec.Spec, p Plan) int {
	const unit, ofThree, besideRotators, wide, usual = 8, 160, 192, 208, 200
	s = p.Reads(s)
	switch {
	case p.Family != SM90 || !manyRows(p.Kind) || p.BlockRows() < apartRows:
		return min(mostRegisters, registersPerSM/(p.Threads()*max(1, p.MinBlocks))/unit*unit)
	case p.RotatesOwn():
		return ofThree
	case s.RotatesKeys():
		return besideRotators
	case s.Model.VHeadDim > 128:
		return wide
	case p.AlignsQueries:
		return besideRotators
	}
	return usual
}
