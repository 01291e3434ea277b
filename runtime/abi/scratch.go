package abi

import "math/bits"

// ScheduleWarps is the warps of the one block of schedule.
const ScheduleWarps = 32

// ScratchWords is the int32 that Scratch has, by the rooms.
func (p *ScheduleParams) ScratchWords() int {
	sequences, segments, parts := int(p.SequenceRoom), int(p.SegmentRoom), int(p.PartRoom)
	table := 1 << bits.Len(uint(2*segments))
	const ofSegment, ofSequence, ofPart, ofItem, ofSharedItem, ends = 28 + ScheduleWarps, 9, 2, 3, 4, 3
	return table + ofSegment*segments + (ofSequence+ofPart*parts)*sequences + ofItem*int(p.ItemRoom) + ofSharedItem*int(p.SharedItemRoom) + ends
}
