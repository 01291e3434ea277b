package schedule

import (
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Given is a decode step as the kernel schedule is given it, which makes the lists on the device that
// [SharedBuilder] makes of it, or where nothing is shared [Builder]. It keeps what it has listed of a sequence from
// step to step, as its Layout and Placed say. Reuse it: it allocates nothing once it has grown.
type Given struct {
	Sequences []abi.Sequence
	Segments  []abi.Segment

	// Number counts the steps, and Changed are the ranges of Segments that are not what they
	// were, at the same places, in the step before.
	Number  uint64
	Changed []Span

	kept []givenSequence // of Sequences
}

// givenSequence is what is known of one.
type givenSequence struct {
	layout, placed uint64 // see [Sequence]; of placed 0 it is not to be kept
	before         int    // tokens of what it holds beside its last segment
}

// Needs is what the lists of a given step take at most.
type Needs struct {
	Queries int // query tokens
	Pairs   int // of a query token and a segment that it reads
	Parts   int // of the sequence that is cut into the most
	Results int // partial results of all query tokens, were none shared; there are no more items
	Longest int // tokens of KV of a sequence
}

// OnDevice says why the kernel schedule can't list decode by these options; nil: it can.
func (o *Options) OnDevice() error {
	switch {
	case o.Window > 0:
		return fmt.Errorf("schedule: with a window of %d the host lists what decode reads", o.Window)
	case o.Keys > 0:
		return fmt.Errorf("schedule: keys are cut where tiles of %d end: the host lists them", o.Keys)
	case o.Wave > 0:
		return fmt.Errorf("schedule: items are in groups of %d: the host lists them", o.Wave)
	case o.SplitTokens > 0 && o.SplitTokens < o.PageSize:
		return fmt.Errorf("schedule: keys are cut every %d tokens, inside pages of %d: the host lists them", o.SplitTokens, o.PageSize)
	}
	return nil
}

// Params are those of the options; what a step needs and where its lists are is to be set. Of nil for s nothing
// is shared.
func (o *Options) Params(s *SharedOptions) abi.ScheduleParams {
	p := abi.ScheduleParams{
		Rows: int32(o.Rows), Group: int32(o.Group), Causal: flag(o.Causal), PageSize: int32(max(1, o.PageSize)),
		SplitTokens: int32(o.SplitTokens), MaxItems: int32(o.MaxItems), PartsPerItem: int32(max(1, o.PartsPerItem)), Whole: flag(o.Whole),
		AtOnce: int32(o.atOnce()), OnceTokens: int32(o.OnceTokens), KVHeads: 1,
		ItemRoom: int32(o.PadItems), TokenRoom: int32(o.PadTokens),
	}
	if o.choosesParts() {
		p.PartsPerItem = 0
	}
	if s != nil {
		p.SharedRows, p.SharedKeys, p.SharedBlocks, p.KVHeads = int32(s.Rows), int32(s.Keys), int32(s.Blocks), int32(s.KVHeads)
		p.Bitwise, p.SharedItemRoom, p.MemberRoom = flag(s.Bitwise), int32(s.PadItems), int32(s.mostMembers())
	}
	return p
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// List lists a step, whose query tokens must follow one another from 0. The options are those of [Builder.Build].
func (g *Given) List(sequences []Sequence, o Options) (Needs, error) {
	needs, err := g.list(sequences, &o)
	if err != nil {
		g.Sequences, g.Segments, g.kept = g.Sequences[:0], g.Segments[:0], g.kept[:0]
		return Needs{}, fmt.Errorf("schedule: %w", err)
	}
	return needs, nil
}

func (g *Given) list(sequences []Sequence, o *Options) (Needs, error) {
	g.Number++
	g.Changed = g.Changed[:0]
	if err := o.check(); err != nil {
		return Needs{}, err
	}
	var needs Needs
	before, segments := len(g.Sequences), int32(0) // of the step before
	g.Sequences, g.kept = resize(g.Sequences, len(sequences)), resize(g.kept, len(sequences))
	for i := range sequences {
		s, to, known := &sequences[i], &g.Sequences[i], &g.kept[i]
		n := int32(len(s.Segments))
		if int(s.QueryBegin) != needs.Queries || len(s.Positions) == 0 || len(s.Positions) > o.Rows/o.Group {
			return Needs{}, fmt.Errorf("sequence %d: query tokens %d to %d: want 1 to %d of them from %d on", i, s.QueryBegin, int(s.QueryBegin)+len(s.Positions)-1, o.Rows/o.Group, needs.Queries)
		}
		kept := i < before && s.Placed != 0 && known.placed == s.Placed && known.layout == s.Layout && to.SegmentBegin == segments && to.SegmentEnd == segments+n &&
			s.Segments[n-1].Own && s.right(known.before+int(s.Segments[n-1].Tokens), false, o)
		*to = abi.Sequence{QueryBegin: s.QueryBegin, QueryCount: int32(len(s.Positions)), SegmentBegin: segments, SegmentEnd: segments + n}
		g.Segments = resize(g.Segments, max(len(g.Segments), int(segments+n)))
		of := g.Segments[segments : segments+n]
		total := 0
		if kept { // but for own tokens, which are last
			total = known.before + int(s.Segments[n-1].Tokens)
			of[n-1] = given(&s.Segments[n-1])
			g.Changed = AppendSpan(g.Changed, segments+n-1, segments+n)
		} else {
			var err error
			if total, err = s.check(o); err != nil {
				return Needs{}, fmt.Errorf("sequence %d: %w", i, err)
			}
			for j := range of {
				of[j] = given(&s.Segments[j])
			}
			g.Changed = AppendSpan(g.Changed, segments, segments+n)
		}
		*known = givenSequence{s.Layout, s.Placed, total}
		if n > 0 {
			known.before -= int(of[n-1].Tokens)
		}
		parts := o.mostParts(total)
		needs.Queries += len(s.Positions)
		needs.Pairs += len(s.Positions) * int(n)
		needs.Parts = max(needs.Parts, parts)
		needs.Results += len(s.Positions) * parts
		needs.Longest = max(needs.Longest, total)
		segments += n
	}
	g.Segments = g.Segments[:segments]
	return needs, nil
}

// mostParts is the most parts of so many tokens of KV, or of fewer: of fewer, which shared decode leaves, there can be more.
func (o *Options) mostParts(tokens int) int {
	if o.SplitTokens == 0 {
		return 1
	}
	parts := max(1, ceil(tokens, o.SplitTokens))
	if o.MaxItems > 0 {
		parts = min(parts, o.MaxItems)
	}
	return parts
}

func given(s *Segment) abi.Segment {
	return abi.Segment{Page: s.Page, Tokens: s.Tokens, Offset: s.Offset, Own: flag(s.Own)}
}
