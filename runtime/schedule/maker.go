package schedule

import (
	"fmt"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Maker makes the lists that the kernel schedule makes, from what that is given. Reuse it, as a builder.
type Maker struct {
	sequences []Sequence
	segments  []Segment
	positions []int32 // zeros: a step without a window has no use for them
	alone     Builder
	shared    SharedBuilder
}

// Make makes the lists of a launch with these parameters; of one without SharedItems nothing is shared.
func (m *Maker) Make(p *abi.ScheduleParams, sequences []abi.Sequence, segments []abi.Segment) (SharedLists, error) {
	m.segments, m.sequences = m.segments[:0], m.sequences[:0]
	for _, s := range segments {
		m.segments = append(m.segments, Segment{Page: s.Page, Tokens: s.Tokens, Offset: s.Offset, Own: s.Own != 0})
	}
	for i, s := range sequences {
		if s.QueryCount < 1 || s.QueryCount > p.TokenRoom || s.SegmentBegin < 0 || s.SegmentEnd < s.SegmentBegin || int(s.SegmentEnd) > len(segments) {
			return SharedLists{}, fmt.Errorf("schedule: sequence %d: %d query tokens, segments %d to %d of %d", i, s.QueryCount, s.SegmentBegin, s.SegmentEnd, len(segments))
		}
		for len(m.positions) < int(s.QueryCount) {
			m.positions = append(m.positions, 0)
		}
		m.sequences = append(m.sequences, Sequence{
			QueryBegin: s.QueryBegin, Positions: m.positions[:s.QueryCount], Segments: m.segments[s.SegmentBegin:s.SegmentEnd],
		})
	}
	o := Options{
		Rows: int(p.Rows), Group: int(p.Group), Causal: p.Causal != 0, MaxPosition: math.MaxInt32, PageSize: int(p.PageSize),
		SplitTokens: int(p.SplitTokens), MaxItems: int(p.MaxItems), Fold: p.PartsPerItem != 1, PartsPerItem: int(p.PartsPerItem),
		Whole: p.Whole != 0, AtOnce: int(p.AtOnce), OnceTokens: int(p.OnceTokens), PadItems: int(p.ItemRoom), PadTokens: int(p.TokenRoom),
	}
	if p.SharedItems == 0 {
		lists, err := m.alone.Build(m.sequences, o)
		return SharedLists{Decode: lists}, err
	}
	return m.shared.Build(m.sequences, o, SharedOptions{
		Rows: int(p.SharedRows), Keys: int(p.SharedKeys), Blocks: int(p.SharedBlocks), KVHeads: int(p.KVHeads), Bitwise: p.Bitwise != 0,
		PadItems: int(p.SharedItemRoom), MaxMembers: int(p.MemberRoom),
	})
}
