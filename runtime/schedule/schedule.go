// Package schedule turns the sequences of one step into the work lists that a
// kernel walks. It is pure: the same sequence gives the same tiles, runs and parts
// whatever else is in the batch. Only Run.Once, and how many parts an item has, say
// something of the others, and neither changes a bit of a result, but for the latter with
// [Options].Whole.
//
// A row is one query token by one query head. A tile is query tokens of one sequence whose
// rows a block of the kernel works on at a time. A run ([abi.Run]) is tokens of one segment
// that a tile reads, one behind the other. A tile's keys, its runs' tokens, are cut into parts,
// each with a result of its own. An item ([abi.Item]) is a tile with one or several of its
// parts: the work that a block takes. Where a tile has several items, each writes its result
// to a slot of each query token, and merge puts these together. A member ([abi.Member]) is a
// query token in an item of shared decode.
package schedule

import (
	"cmp"
	"errors"

	"github.com/kgen-project/kgen/runtime/abi"
)

// ErrFixedSize is a step that needs more than Options.PadItems or
// Options.PadTokens; the message says how much.
var ErrFixedSize = errors.New("the step does not fit its fixed size")

// Segment is a chunk, or the sequence's own tokens, at an offset. Own tokens that a
// chunk was placed behind are as a chunk, which all query tokens see.
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

	// Layout names what the sequence holds beside its own tokens, or is 0. Sequences of one
	// Layout hold the same chunks at the same offsets, in whatever step they are; the chunks'
	// pages may have moved in the table. A builder that finds the Layout of a sequence, or
	// those of all, in the step before takes what they hold for what it was, and expects the
	// last segment to be own tokens.
	Layout uint64
	// Placed names the pages of what the sequence holds too, or is 0: sequences of one
	// Placed, in whatever step they are, have one Layout and their chunks the same Page.
	Placed uint64
}

// Options are the facts of a spec and a plan that the lists depend on.
type Options struct {
	Rows        int  // rows of a tile
	Group       int  // query heads that share one KV head
	Causal      bool // own tokens see only what comes before them
	Window      int  // a key is seen iff its position is within the last Window positions; 0: no limit
	SinkTokens  int  // keys at positions below this are seen whatever the window
	MaxPosition int  // positions and ends of segments stay below it

	// A tile's keys, its sequence's segments one after the other but for what is outside
	// Window, are cut at every multiple of SplitTokens; a page goes with its first token. 0: never.
	SplitTokens int
	// Keys is for a kernel of many rows that folds parts: the keys of its tiles, a power of two. A tile of
	// query tokens is then cut at even distances, of SplitTokens or more but for a tile of keys, and each cut is at the nearest
	// place in its segment where a tile of keys ends, so that it makes none less whole. 0: as SplitTokens says.
	Keys     int
	PageSize int // tokens, a power of two; every run begins at the start of a page. 0: 1
	// MaxItems limits the cuts: a tile of a sequence whose query tokens fill T of them has at most
	// max(1, MaxItems/T) parts, and SplitTokens is multiplied by the smallest whole number for that; with Keys
	// the distance is as much larger as it takes. 0: no limit.
	MaxItems int

	// Fold is for a kernel that takes items of several parts (see [abi.Item]): those of
	// family sm90. An item then has PartsPerItem of them, a power of two, and a tile's
	// last item what is left; 0: as many as are expected to be the fastest for the step,
	// by its own items and AtOnce. Tiles with partial results of shared decode keep an
	// item for each part. There are never more slots than without.
	Fold         bool
	PartsPerItem int
	// Whole has the kernel walk an item's parts as one, in place of folding their results: that
	// takes no slots and less time, and the last bits of a result depend on PartsPerItem, so on
	// the step's other sequences where it is 0.
	Whole bool
	// AtOnce is how many items, for all KV heads, the device runs at a time, to choose
	// PartsPerItem by; 0: MaxItems.
	AtOnce int
	// Wave is as AtOnce, and makes the items in groups of so many or more: see [Options.Together]. 0: the
	// heaviest of all come first.
	Wave int
	// Cluster is how many blocks take an item together, each some of its rows; 0: 1.
	Cluster int

	// OnceTokens is the most tokens of KV, each counted once, of a step whose runs say Once,
	// where that is of use (see [Options.Cache]); 0: no limit. Runs of shared decode say Once
	// however many there are: where all who hold the chunk are in one tile.
	OnceTokens int

	// PadItems and PadTokens are fixed sizes, for lists that a CUDA graph reads
	// again and again: items that do nothing are added up to PadItems, query
	// tokens that own no slot up to PadTokens. 0: no padding.
	PadItems, PadTokens int
}

// FillBy returns o with the cuts by which one sequence alone fills a device with so many blocks
// of the kernel, of which so many as resident run at a time; resident 0: all. With c the fewest keys of
// a part, [LeastPart] where nobody measured another, and for a sequence of n query tokens and T keys
// (those that a window leaves of them, for a tile):
//
//	tiles = ceil(n / floor(Rows / Group))
//	most  = max(1, floor(floor(blocks / kvHeads) / tiles))
//	cut   = c ceil(T / (c most))
//
// or, for a kernel with Keys,
//
//	parts = min(most, floor(T / c))
//	parts = min(parts, max(floor(8 / (tiles Cluster)), floor(T / (2 c)))), if not Whole
//	cut   = ceil(T / max(1, parts)), and a little more
//
// Parts below c keys cost more in partial results than they gain. Nothing else goes
// in: a sequence is cut the same way alone and in any batch.
func (o Options) FillBy(blocks, resident, kvHeads, c int) Options {
	o.SplitTokens = max(1, c)
	o.MaxItems = max(1, blocks/max(1, kvHeads))
	o.AtOnce = resident / max(1, kvHeads)
	return o
}

// Together returns o with the tiles of a sequence as close to each other as the device can still share out
// evenly, for prefill: what one of a sequence's tiles has read is then in the L2 cache for the others. Of the
// kernel blocks and resident are as for [Options.FillBy].
func (o Options) Together(blocks, resident, kvHeads int) Options {
	o.Wave = cmp.Or(resident, blocks) / max(1, kvHeads)
	return o
}

// Parts is how many parts of even size a tile that sees so many tokens is cut into, of a sequence whose
// query tokens fill so many tiles, wherever its segments end.
func (o Options) Parts(tokens, tiles int) int {
	return max(1, ceil(tokens, o.splitTokens(tokens, tiles)))
}

// LeastPart is the fewest keys of a part, by [Options.FillBy], for a kernel whose tiles have so
// many: max(4 keys, 256).
func LeastPart(keys int) int { return max(4*keys, 256) }

// Cache returns o for a device with an L2 cache of so many bytes, of KV of so many bytes a
// token, all heads together. A step of less than six caches' bytes is faster where what
// it reads once goes first: that spares what else the cache holds, above all lines that were
// written, each of which costs a write to memory when it goes. A larger step pushes
// all of it out anyway, and reads 1 to 3 percent slower with Once (H200, whose cache is 60 MB,
// decode: steps of 270 MB take 79 us with Once and 81 without, of 400 MB 112 and 110, of 540 MB 147
// and 144). But a kernel of many rows that folds parts by way of memory has what it wrote back from the cache, a part
// or two later, and takes 8 to 15 percent less with Once however large the step (H100, extend of 16 to 64 tokens by 16 to 64 sequences
// over 4096 and 8192, steps of 540 to 1070 MB; 3 percent more by 64 over 2048).
func (o Options) Cache(bytes int64, tokenBytes int) Options {
	folds := o.Fold && !o.Whole && o.Rows >= productRows
	if bytes > 0 && tokenBytes > 0 && !folds {
		o.OnceTokens = int(max(1, 6*bytes/int64(tokenBytes)))
	}
	return o
}

// Lists are the work lists of one step.
type Lists struct {
	Items     []abi.Item // heaviest first, to within an eighth of the heaviest, or group by group so: see Options.Together; padding last
	Runs      []abi.Run
	SlotBegin []int32 // [query tokens + 1]: the partial slots of each query token, for merge
	Slots     int     // partial slots in all: those of SlotBegin, and behind them those of Item.Scratch

	PartsPerItem int // of an item, at most

	// Number counts the lists that a builder has made, and Changed are the ranges of Runs
	// that are not what they were, at the same places, in those of the number before.
	Number  uint64
	Changed []Span
}

// Span is a range of a list.
type Span struct{ Begin, End int32 }

// AppendSpan appends a range to those before it.
func AppendSpan(spans []Span, begin, end int32) []Span {
	if last := len(spans) - 1; last >= 0 && spans[last].End == begin {
		spans[last].End = end
		return spans
	}
	return append(spans, Span{begin, end})
}

// Merged is how many slots merge takes; 0: there is nothing to merge.
func (l *Lists) Merged() int {
	if len(l.SlotBegin) == 0 {
		return 0
	}
	return int(l.SlotBegin[len(l.SlotBegin)-1])
}

// Build makes the lists. A tile is cut within one sequence, and holds Rows /
// Group query tokens. Keys that no row of a tile sees are left out of its runs
// as far as that is known without looking at single rows. A tile that one item has
// writes its output itself; so does a tile that sees no key.
func Build(sequences []Sequence, o Options) (Lists, error) {
	return new(Builder).Build(sequences, o)
}
