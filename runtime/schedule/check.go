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
		{"Window", o.Window}, {"SinkTokens", o.SinkTokens}, {"SplitTokens", o.SplitTokens}, {"MaxItems", o.MaxItems}, {"AtOnce", o.AtOnce}, {"Wave", o.Wave}, {"Cluster", o.Cluster},
		{"PageSize", o.PageSize}, {"Keys", o.Keys}, {"PartsPerItem", o.PartsPerItem}, {"PadItems", o.PadItems}, {"PadTokens", o.PadTokens},
	} {
		if f.value < 0 || f.value > math.MaxInt32 {
			return fmt.Errorf("%s is %d, want 0 to %d", f.name, f.value, math.MaxInt32)
		}
	}
	for _, f := range [...]struct {
		name  string
		value int
	}{{"PageSize", o.PageSize}, {"Keys", o.Keys}} {
		if f.value&(f.value-1) != 0 {
			return fmt.Errorf("%s is %d, want a power of two", f.name, f.value)
		}
	}
	if n := o.PartsPerItem; n&(n-1) != 0 || n > 1 && !o.Fold {
		return fmt.Errorf("PartsPerItem is %d, want a power of two, or 0 or 1 without Fold", n)
	}
	return nil
}

// countTokens returns the number of query tokens, up to the last that has a sequence, or,
// with PadTokens, those. It comes before anything that a builder keeps is changed.
func (b *Builder) countTokens(sequences []Sequence, o *Options) (int, error) {
	tokens, err := b.checkOrder(sequences)
	switch {
	case err != nil || o.PadTokens == 0:
		return tokens, err
	case tokens > o.PadTokens:
		return 0, fmt.Errorf("%w: %d query tokens, there is room for %d", ErrFixedSize, tokens, o.PadTokens)
	}
	return o.PadTokens, nil
}

// checkOrder returns the number of query tokens, up to the last that has a sequence.
func (b *Builder) checkOrder(sequences []Sequence) (tokens int, err error) {
	inOrder := true
	for i := range sequences {
		s := &sequences[i]
		if len(s.Positions) == 0 {
			return 0, fmt.Errorf("sequence %d: no query tokens; leave the sequence out", i)
		}
		if s.QueryBegin < 0 || int(s.QueryBegin)+len(s.Positions) > math.MaxInt32 {
			return 0, fmt.Errorf("sequence %d: query tokens %d to %d are outside 0 to %d",
				i, s.QueryBegin, int(s.QueryBegin)+len(s.Positions), math.MaxInt32)
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
	if err := s.checkPositions(o); err != nil {
		return 0, err
	}
	owned := false
	for i := range s.Segments {
		segment := &s.Segments[i]
		if segment.Own || segment.Tokens|segment.Page|segment.Offset < 0 || int(segment.Offset)+int(segment.Tokens) > o.MaxPosition {
			if err := s.checkSegment(i, o, owned); err != nil {
				return 0, err
			}
			owned = true
		}
		total += int(segment.Tokens)
	}
	return total, checkTotal(total)
}

func (s *Sequence) checkPositions(o *Options) error {
	for i, p := range s.Positions {
		if p < 0 || int(p) >= o.MaxPosition {
			return fmt.Errorf("query token %d of the block is at position %d, want 0 to %d", i, p, o.MaxPosition-1)
		}
	}
	return nil
}

func checkTotal(total int) error {
	if total > math.MaxInt32 {
		return fmt.Errorf("%d tokens, want at most %d", total, math.MaxInt32)
	}
	return nil
}

// checkSegment says what is wrong with a segment. owned: there are own tokens before it.
func (s *Sequence) checkSegment(i int, o *Options, owned bool) error {
	segment := &s.Segments[i]
	switch {
	case segment.Tokens < 0:
		return fmt.Errorf("segment %d: %d tokens", i, segment.Tokens)
	case segment.Page < 0:
		return fmt.Errorf("segment %d: page table index %d", i, segment.Page)
	case segment.Offset < 0 || int(segment.Offset)+int(segment.Tokens) > o.MaxPosition:
		return fmt.Errorf("segment %d: positions %d to %d, want them within 0 to %d",
			i, segment.Offset, int(segment.Offset)+int(segment.Tokens)-1, o.MaxPosition-1)
	case owned:
		return fmt.Errorf("segment %d: a second segment of own tokens", i)
	case o.Causal && int(segment.Tokens) < len(s.Positions):
		return fmt.Errorf("segment %d: %d own tokens do not hold the %d query tokens; append them first",
			i, segment.Tokens, len(s.Positions))
	}
	return nil
}
