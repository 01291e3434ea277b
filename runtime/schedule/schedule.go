// Package schedule turns the sequences of one step into the work lists that a
// kernel walks. It is pure: the same sequence gives the same items, runs and
// split boundaries whatever else is in the batch.
package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Segment is a chunk, or the sequence's own tokens, at an offset.
type Segment struct {
	Page   int32 // index in the page table of the segment's first page
	Tokens int32
	Offset int32 // position of token 0 in the sequence
	Own    bool  // the sequence's own tokens, of which the query tokens are the last; at most one
}

// Sequence is one block of query tokens and the segments it attends to, in order.
type Sequence struct {
	QueryBegin int32   // first query token
	Positions  []int32 // position of each query token
	Segments   []Segment
}

// Options are the facts of a spec and a plan that the lists depend on.
type Options struct {
	Rows        int  // rows of a tile
	Group       int  // query heads that share one KV head
	Causal      bool // own tokens see only what comes before them
	Window      int  // a key is seen iff its position is within the last Window positions; 0: no limit
	SinkTokens  int  // keys at positions below this are seen whatever the window
	MaxPosition int  // positions and ends of segments stay below it

	// A sequence's keys, its segments one after the other, are cut at every
	// multiple of SplitTokens; a page goes with its first token. 0: never.
	SplitTokens int
	PageSize    int // tokens; every run begins at the start of a page. 0: 1
	// MaxSplits limits the cuts: SplitTokens is multiplied by the smallest
	// whole number that leaves a sequence at most this many. 0: no limit.
	MaxSplits int
}

// Lists are the work lists of one step.
type Lists struct {
	Items     []abi.Item // heaviest first
	Runs      []abi.Run
	SlotBegin []int32 // [query tokens + 1]: the partial slots of each query token, for merge
	Slots     int     // partial slots in all; 0: nothing to merge
}

// Build makes the lists. A tile is cut within one sequence, and holds Rows /
// Group query tokens. Keys that no row of a tile sees are left out of its runs
// as far as that is known without looking at single rows. A tile whose keys
// lie in one split writes its output itself; so does a tile that sees no key.
func Build(sequences []Sequence, o Options) (Lists, error) {
	if err := o.check(); err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	if err := checkSequences(sequences, o); err != nil {
		return Lists{}, fmt.Errorf("schedule: %w", err)
	}
	var tiles []tile
	tokens := 0
	for _, s := range sequences {
		tokens = max(tokens, int(s.QueryBegin)+len(s.Positions))
		tiles = append(tiles, s.tiles(o)...)
	}

	l := Lists{SlotBegin: make([]int32, tokens+1)}
	for _, t := range tiles {
		if len(t.splits) > 1 {
			for i := range t.count {
				l.SlotBegin[t.begin+i+1] = int32(len(t.splits))
			}
		}
	}
	slots := 0
	for i, n := range l.SlotBegin {
		if slots += int(n); slots > math.MaxInt32 {
			return Lists{}, fmt.Errorf("schedule: more than %d partial slots; raise SplitTokens or lower MaxSplits", math.MaxInt32)
		}
		l.SlotBegin[i] = int32(slots)
	}
	l.Slots = slots

	for _, t := range tiles {
		l.add(t)
	}
	slices.SortStableFunc(l.Items, func(a, b abi.Item) int { return cmp.Compare(l.keys(b), l.keys(a)) })
	return l, nil
}

// add appends the items and runs of a tile.
func (l *Lists) add(t tile) {
	item := abi.Item{QBegin: t.begin, QCount: t.count, QIndex: t.index, Slot: abi.Final}
	if len(t.splits) == 0 {
		item.RunBegin = int32(len(l.Runs))
		item.RunEnd = item.RunBegin
		l.Items = append(l.Items, item)
		return
	}
	for i, runs := range t.splits {
		item.RunBegin = int32(len(l.Runs))
		l.Runs = append(l.Runs, runs...)
		item.RunEnd = int32(len(l.Runs))
		if len(t.splits) > 1 {
			item.Slot = l.SlotBegin[t.begin] + int32(i)
			item.SlotStride = int32(len(t.splits))
		}
		l.Items = append(l.Items, item)
	}
}

// keys is the number of keys an item walks.
func (l *Lists) keys(item abi.Item) int {
	n := 0
	for _, r := range l.Runs[item.RunBegin:item.RunEnd] {
		n += int(r.End - r.Begin)
	}
	return n
}

// tile is some query tokens of one sequence with the runs that they see, by split.
type tile struct {
	begin, count, index int32 // as QBegin, QCount and QIndex of abi.Item
	splits              [][]abi.Run
}

func (s Sequence) tiles(o Options) []tile {
	unit := s.splitTokens(o)
	perTile := int32(o.Rows / o.Group)
	n := int32(len(s.Positions))
	var tiles []tile
	for i := int32(0); i < n; i += perTile {
		t := tile{begin: s.QueryBegin + i, count: min(perTile, n-i), index: i}
		lowest := slices.Min(s.Positions[i : i+t.count])
		last := -1  // split that the last run went to
		before := 0 // tokens of the segments before this one
		for _, segment := range s.Segments {
			causal := int32(abi.Visible)
			if segment.Own && o.Causal {
				causal = segment.Tokens - n
			}
			for _, r := range o.visible(segment, causal, i+t.count-1, lowest) {
				for begin := r.Begin; begin < r.End; {
					split := (before + int(o.pageOf(begin))) / unit
					if split != last {
						t.splits = append(t.splits, nil)
						last = split
					}
					part := r
					part.Begin = begin
					part.End = int32(min(int(r.End), roundUp((split+1)*unit-before, o.pageSize())))
					runs := &t.splits[len(t.splits)-1]
					*runs = append(*runs, part)
					begin = part.End
				}
			}
			before += int(segment.Tokens)
		}
		tiles = append(tiles, t)
	}
	return tiles
}

// visible is the part of a segment that a tile can see: one run, or two where
// the window leaves a gap after the sink tokens. lastIndex is the tile's last
// query token in its block, lowest the smallest position of its tokens.
func (o Options) visible(s Segment, causal, lastIndex, lowest int32) []abi.Run {
	run := abi.Run{Page: s.Page, Begin: 0, End: s.Tokens, Offset: s.Offset, Causal: causal}
	if causal != abi.Visible {
		run.End = min(run.End, lastIndex+causal+1)
	}
	if o.Window == 0 {
		return nonEmpty(run)
	}
	// Before first, every key is Window or more positions behind every row.
	first := o.pageOf(int32(max(0, int(lowest)-o.Window+1-int(s.Offset))))
	sinks := int32(max(0, min(int(run.End), o.SinkTokens-int(s.Offset))))
	if first <= sinks {
		return nonEmpty(run)
	}
	sink := run
	sink.End = sinks
	run.Begin = first
	return append(nonEmpty(sink), nonEmpty(run)...)
}

// pageOf is the first token of the page that holds a token of a segment.
func (o Options) pageOf(token int32) int32 { return token - token%int32(o.pageSize()) }

func (o Options) pageSize() int { return max(1, o.PageSize) }

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

func nonEmpty(r abi.Run) []abi.Run {
	if r.Begin >= r.End {
		return nil
	}
	return []abi.Run{r}
}

// splitTokens is the distance of this sequence's cuts.
func (s Sequence) splitTokens(o Options) int {
	if o.SplitTokens == 0 {
		return math.MaxInt32
	}
	if o.MaxSplits == 0 {
		return o.SplitTokens
	}
	total := 0
	for _, segment := range s.Segments {
		total += int(segment.Tokens)
	}
	limit := o.SplitTokens * o.MaxSplits
	return o.SplitTokens * max(1, (total+limit-1)/limit)
}
