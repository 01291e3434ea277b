package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

func (o Options) check() error {
	switch {
	case o.Group < 1 || o.Rows < o.Group:
		return fmt.Errorf("a tile of %d rows does not hold a group of %d query heads", o.Rows, o.Group)
	case o.MaxPosition < 1 || o.MaxPosition > math.MaxInt32:
		return fmt.Errorf("MaxPosition is %d, want 1 to %d", o.MaxPosition, math.MaxInt32)
	}
	for _, f := range [...]struct {
		name  string
		value int
	}{
		{"Window", o.Window}, {"SinkTokens", o.SinkTokens}, {"SplitTokens", o.SplitTokens}, {"MaxItems", o.MaxItems},
		{"PageSize", o.PageSize}, {"PadItems", o.PadItems}, {"PadTokens", o.PadTokens},
	} {
		if f.value < 0 || f.value > math.MaxInt32 {
			return fmt.Errorf("%s is %d, want 0 to %d", f.name, f.value, math.MaxInt32)
		}
	}
	return nil
}

// check fills totals and returns the number of query tokens, up to the last that has a sequence.
func (b *Builder) check(sequences []Sequence, o *Options) (tokens int, err error) {
	inOrder := true
	b.totals = resize(b.totals, len(sequences))
	for i := range sequences {
		s := &sequences[i]
		if b.totals[i], err = s.check(o); err != nil {
			return 0, fmt.Errorf("sequence %d: %w", i, err)
		}
		inOrder = inOrder && int(s.QueryBegin) >= tokens
		tokens = max(tokens, int(s.QueryBegin)+len(s.Positions))
	}
	if inOrder {
		return tokens, nil
	}
	b.order = resize(b.order, len(sequences))
	for i := range b.order {
		b.order[i] = int32(i)
	}
	slices.SortFunc(b.order, func(i, j int32) int {
		return cmp.Or(cmp.Compare(sequences[i].QueryBegin, sequences[j].QueryBegin), cmp.Compare(i, j))
	})
	end, owner := 0, int32(-1)
	for _, i := range b.order {
		s := &sequences[i]
		if int(s.QueryBegin) < end {
			return 0, fmt.Errorf("sequence %d: query token %d belongs to sequence %d already", i, s.QueryBegin, owner)
		}
		end, owner = int(s.QueryBegin)+len(s.Positions), i
	}
	return tokens, nil
}

// check returns the tokens of the segments.
func (s *Sequence) check(o *Options) (total int, err error) {
	if len(s.Positions) == 0 {
		return 0, fmt.Errorf("no query tokens; leave the sequence out")
	}
	if s.QueryBegin < 0 || int(s.QueryBegin)+len(s.Positions) > math.MaxInt32 {
		return 0, fmt.Errorf("query tokens %d to %d are outside 0 to %d", s.QueryBegin, int(s.QueryBegin)+len(s.Positions), math.MaxInt32)
	}
	for i, p := range s.Positions {
		if p < 0 || int(p) >= o.MaxPosition {
			return 0, fmt.Errorf("query token %d of the block is at position %d, want 0 to %d", i, p, o.MaxPosition-1)
		}
	}
	own := -1
	for i := range s.Segments {
		segment := &s.Segments[i]
		switch {
		case segment.Tokens < 0:
			return 0, fmt.Errorf("segment %d: %d tokens", i, segment.Tokens)
		case segment.Page < 0:
			return 0, fmt.Errorf("segment %d: page table index %d", i, segment.Page)
		case segment.Offset < 0 || int(segment.Offset)+int(segment.Tokens) > o.MaxPosition:
			return 0, fmt.Errorf("segment %d: positions %d to %d, want them within 0 to %d",
				i, segment.Offset, int(segment.Offset)+int(segment.Tokens)-1, o.MaxPosition-1)
		case segment.Own && own >= 0:
			return 0, fmt.Errorf("segment %d: a second segment of own tokens; segment %d is the first", i, own)
		case segment.Own && o.Causal && int(segment.Tokens) < len(s.Positions):
			return 0, fmt.Errorf("segment %d: %d own tokens do not hold the %d query tokens; append them first",
				i, segment.Tokens, len(s.Positions))
		}
		if segment.Own {
			own = i
		}
		total += int(segment.Tokens)
	}
	if total > math.MaxInt32 {
		return 0, fmt.Errorf("%d tokens, want at most %d", total, math.MaxInt32)
	}
	return total, nil
}
