package plan

import (
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
)

// What the structs in a kernel's shared memory are made of, in bytes.
const (
	elementBytes = 2
	tileAlign    = 256
	columnAlign  = 1024
	keyTileBytes = 6 * 4                // struct KeyTile
	resultPad    = 8                    // of a row of struct WarpResult, elements
	works        = 4 * (2*4 + barriers) // struct WorkRing
	barrier      = 8
	barriers     = 2 * barrier // a full and a free barrier of what fills and empties

	scheduleShared = 4608 // struct ScheduleShared, and some more
)

// highTermBytes is the size of struct HighTerms.
func highTermBytes(s spec.Spec, keys int) int {
	const unit, unitElements, lowRows = 16, 2 * 8, 1 << abi.RopeLowBits
	rows, bytes := keys/lowRows+1, 4 // of an element of struct KeyTerms
	if FP16Keys(s, SM90) {
		rows, bytes = rows-1, 2
	}
	return s.Rope.RotaryDim / unit * rows * unitElements * bytes
}

// sharedBytes is the size of the kernel's one shared-memory struct; the
// generated source holds it to the struct's own size.
func sharedBytes(s spec.Spec, p Plan) int {
	m := s.Model
	lastPosition := 0
	if s.Masks.Window > 0 {
		lastPosition = 4
	}
	query := p.BlockRows() * m.HeadDim * elementBytes
	stages := p.Stages * p.Keys * (m.HeadDim + m.VHeadDim) * elementBytes
	switch {
	case p.Family == SM90 && p.Kind == spec.Decode: // struct DecodeSm90Shared
		const queryIndex, tasks, taskBytes = 4, 4, 8*4 + 2*4 + 3*4
		rotation, rotationBarriers := 0, 0
		if s.RotatesKeys() {
			rotation, rotationBarriers = highTermBytes(s, p.Keys), p.Stages*barrier
		}
		results := p.Results * DecodeShares(s, p.Family, p.Warps) * p.Rows * (2 + m.VHeadDim + resultPad) * 4
		kept := max(16, p.KeptLevels*p.Rows*(m.VHeadDim+1)*4)
		rings := roundUp(tasks*taskBytes+p.Stages*(keyTileBytes+queryIndex), 8) + (2*p.Stages+p.Queries+tasks+p.Results)*barriers + rotationBarriers
		return roundUp(p.Queries*query+stages+results+kept+rotation+rings, columnAlign)
	case p.Family == SM90: // struct AttendSm90Shared
		const note = 4
		keyStages, keyBarriers, rotation := p.KeyStages, barriers, 0
		stages += (p.KeyStages - p.Stages) * p.Keys * m.HeadDim * elementBytes
		if s.RotatesKeys() {
			keyBarriers, rotation = barriers+p.Cluster*barrier, highTermBytes(s, p.BlockKeys())
		}
		if p.Cluster > 1 {
			keyBarriers += barrier // of notes that are read
		}
		queryBarriers := p.Queries * barriers
		if p.AlignsQueries { // struct RunRotation
			const unit, block = 16, 8 * 8 * elementBytes
			if AlignsPairs(s) {
				rotation = m.HeadDim * elementBytes // a cosine and a sine of each pair
			} else {
				rotation = (2*m.HeadDim/unit + 1) * block
			}
		}
		if p.AlignsQueries || p.GivesQueriesEarly(s) { // barriers for each warpgroup's rows
			const warpgroupRows = 64
			queryBarriers *= p.BlockRows() / warpgroupRows
		}
		rings := works + queryBarriers + roundUp(keyStages*(keyTileBytes+note)+lastPosition, 8) + keyStages*keyBarriers + p.Stages*barriers
		return roundUp(p.Queries*query+stages+rotation+rings, columnAlign)
	case manyRows(p.Kind): // struct AttendShared
		sums := 2 * (p.Rows / p.Warps / 16) * p.Threads() * 4
		return roundUp(query+stages+(p.Stages+1)*keyTileBytes+sums+lastPosition, tileAlign)
	case p.Kind == spec.Decode: // union DecodeShared
		result := p.Rows * (2 + m.VHeadDim + resultPad) * 4
		return roundUp(p.Warps*max(query+stages, result), tileAlign)
	}
	return 0
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
