// Package abi defines what crosses the border between Go and a kernel: the
// launch parameters of every kernel kind and the device-resident work lists
// they point to.
//
// Each struct here is emitted as a C struct of the same name and layout into
// every generated source, with static_asserts on its size and offsets, so a
// field is described once. All structs use fixed-size fields, are naturally
// aligned, and have no implicit padding; [Layout] checks this.
//
// Shapes are written outermost first; "tokens" are query tokens of one step.
//
// Kernels move 16 bytes at a time: tensors of the spec's element type, caches,
// PartialOut and Rope begin at multiples of 16 bytes ([Aligned]), and token strides
// are multiples of 8 elements. What else a struct points to begins at a multiple of
// its own element. On a GPU a launch that breaks this ends the process's use of the
// device. Launchers refuse what CheckAligned finds, the addresses and strides of the
// first sentence; the rest is the caller's to hold.
package abi

// DevicePtr is an address in device memory. Zero is the null pointer.
type DevicePtr uint64

// Why 5 bits: a kernel that rotates keys takes tiles of consecutive tokens. With a row of
// the low level for each lane of a warp, that level (16 KiB of 64 pairs) stays in the
// registers of a few warps, and a tile of 128 keys, 64 KiB with its values, reads 5 rows
// of the high level, 2.5 KiB. With 8 or 10 bits it would read 128 rows of the low level,
// as much again as K and V; 6 would take twice the registers, more than there are. Queries
// of 32 consecutive tokens read 17 KiB either way, but with 5 bits 16 of them are the same
// for all, and stay in a multiprocessor's L1 cache. The price is the size of the high level:
// 16 MiB of 64 pairs and 2^20 positions, of which only the positions in use are read,
// where 10 bits take 0.5 MiB.

// RopeLowBits is the number of bits of a position that the low level of a
// RoPE table covers: position = high<<RopeLowBits + low.
const RopeLowBits = 5

// Visible is the Run.Causal of a run whose every token all query tokens see.
const Visible = 1 << 30

// Final is the Item.Slot of an item that covers all of its rows' keys and
// writes Out itself.
const Final = -1

// AttendParams launches prefill, extend, decode and shared_decode.
// The grid is (ItemCount, KVHeads), or for family sm90 any number of blocks, among
// which the pairs of an item and a KV head are shared out; items with QCount 0 do
// nothing, and come last.
type AttendParams struct {
	Q          DevicePtr // [tokens][query heads][head dim], un-rotated; element type of the spec
	KCache     DevicePtr // pages, see the spec's cache layout
	VCache     DevicePtr // pages, see the spec's cache layout
	Out        DevicePtr // [tokens][query heads][v head dim], element type of the spec; not over Q, as it holds other numbers before the kernel ends
	LSE        DevicePtr // float32 [tokens][query heads], natural log, sink logit left out; may be null
	PartialOut DevicePtr // float32 [slots][query heads][v head dim]; used where Item.Slot >= 0, and as scratch
	PartialLSE DevicePtr // float32 [slots][query heads], base 2, scores scaled
	Items      DevicePtr // Item [ItemCount]
	Runs       DevicePtr // Run []
	PageTable  DevicePtr // int32 []: page indices, addressed by Run.Page
	Positions  DevicePtr // int32 [tokens]: position of each query token in its sequence
	Rope       DevicePtr // float32 (cos, sin) [1<<RopeLowBits + high rows][rotary dim / 2]
	SinkLogits DevicePtr // float32 [query heads]; null unless the spec has sink_logits
	KMap       DevicePtr // tensor map of KCache, 128 bytes; null but for family sm90
	VMap       DevicePtr // tensor map of VCache, 128 bytes; null but for family sm90

	Members       DevicePtr // Member []: the query tokens of shared_decode's items; null for the other kinds
	MemberOffsets DevicePtr // int32 []: see Run.Offset; null but for shared_decode

	// uint32 [2], zeros before and after the launch, of no other launch at the same time:
	// blocks of family sm90 take work by it as they come to the end of what they have. Null,
	// and always for decode: each has a share that is fixed from the start. Results are the
	// same.
	Counter DevicePtr

	QTokenStride   int32   // elements from one token to the next in Q
	OutTokenStride int32   // elements from one token to the next in Out
	KVHeads        int32   // query heads are KVHeads * group
	ItemCount      int32   // grid size
	Scale          float32 // score scale, the RoPE attention factor of full rotation included
	RopeScale      float32 // factor on the rotated dimensions of the query; 1 but for scaled partial rotation
	RunCount       int32   // of Runs, and
	PageCount      int32   // of PageTable: elements that are worth reading ahead of their use; 0 is as right, and slower
}

// Item is one work item: a tile of query tokens against a list of runs. One of
// shared_decode names its query tokens by Members: QBegin and QCount count members,
// each with a slot of its own; QIndex, Item.Slot and SlotStride are 0.
//
// The keys of a tile are cut into parts, of which each has a result: outputs o and lse,
// base 2. Two of them, a before b, fold into one, with m = max(lse_a, lse_b),
// w_a = 2^(lse_a - m), w_b = 2^(lse_b - m) and s = w_a + w_b:
//
//	o = o_a (w_a / s) + o_b (w_b / s), lse = m + log2(s); two of lse -inf: zeros, -inf
//
// A tile's parts fold as a binary counter counts: the result of part i, from 0, folds with
// the one kept at level 0, then level 1 and so on as long as i has that bit, and is kept at
// the next; that of the last part, p, with those of all levels that are bits of p,
// ascending. So parts in groups of a power of two, of which each is one item, have the same
// bits as an item for each part: kernels of family sm90 fold an item's parts, merge the
// results of items. For other kernels an item has one part.
type Item struct {
	QBegin     int32 // first query token, or first member
	QCount     int32 // query tokens, at most tile rows / group; 0 for a padding item
	QIndex     int32 // index of QBegin in its sequence's block of query tokens, for Run.Causal
	RunBegin   int32 // first run
	RunEnd     int32 // one past the last run
	Slot       int32 // partial slot of token QBegin, or Final
	SlotStride int32 // slots from one token's to the next token's
	Scratch    int32 // of several parts: first slot of those that the kernel folds by, QCount of them at each level
}

// Member is one query token of an item of shared_decode; a token that stands in
// several items has a slot for each.
type Member struct {
	Token int32 // query token
	Slot  int32 // partial slot of its results
}

// Run is a token range of one segment inside a work item.
type Run struct {
	Page     int32 // index in PageTable of the segment's first page
	Begin    int32 // first token, counted from the start of the segment; the start of a page
	End      int32 // one past the last token
	Offset   int32 // position of the segment's token 0 in the sequence; shared_decode: index in MemberOffsets of those positions, one for each member of the item
	Causal   int32 // token l is seen by query token i of the block iff l <= i + Causal
	Once     int32 // 1: nothing of the launch reads these tokens at another time, so the L2 cache need not keep them; results are the same
	EndsPart int32 // 1: the run is the last of a part of its item; 0 may stand where the item has one part
	Reserved int32
}

// AppendParams launches append: rotate K as the encoding says, write K and V
// to pages. The grid is (Tokens, 1).
type AppendParams struct {
	K         DevicePtr // [tokens][KV heads][head dim], un-rotated
	V         DevicePtr // [tokens][KV heads][v head dim]
	KCache    DevicePtr // pages
	VCache    DevicePtr // pages
	Slots     DevicePtr // int32 [tokens]: page * page size + place in the page; negative: skip the token
	Positions DevicePtr // int32 [tokens]: segment: position in the chunk; baked: position in the sequence; raw: not read
	Rope      DevicePtr // as in AttendParams

	KTokenStride int32 // elements from one token to the next in K
	VTokenStride int32 // elements from one token to the next in V
	KVHeads      int32
	Tokens       int32 // grid size
}

// MergeParams launches merge: partial results of the splits to outputs, which uses the
// partial results up. The grid is (tokens, ceil(query heads / warps)); a token with no
// slots is left as it is.
type MergeParams struct {
	PartialOut DevicePtr // float32 [slots][query heads][v head dim]; merge may leave other numbers there
	PartialLSE DevicePtr // float32 [slots][query heads], base 2, scores scaled; likewise
	Out        DevicePtr // [tokens][query heads][v head dim]
	LSE        DevicePtr // float32 [tokens][query heads], natural log; may be null
	SlotBegin  DevicePtr // int32 [tokens+1]: token t owns the slots SlotBegin[t] to SlotBegin[t+1], which fold as an item's parts do
	SinkLogits DevicePtr // float32 [query heads]; null unless the spec has sink_logits

	OutTokenStride int32 // elements from one token to the next in Out
	QHeads         int32
	Tokens         int32
	Reserved       int32
}

// MaterialiseParams launches materialise, the Block-Attention baseline: copy
// segments into a sequence's own pages with K at its positions in the
// sequence. The grid is (CopyCount, KVHeads). Without DstV it rotates keys ahead of a kernel
// that reads them rotated: copies K alone, to pages that no page table names, as Copy.DstPage
// is then the first page itself.
type MaterialiseParams struct {
	SrcK      DevicePtr // pages, in the spec's encoding
	SrcV      DevicePtr // pages
	DstK      DevicePtr // pages, baked
	DstV      DevicePtr // pages; null: K alone is copied
	Copies    DevicePtr // Copy [CopyCount]
	PageTable DevicePtr // int32 []: page indices of source and destination
	Rope      DevicePtr // as in AttendParams

	KVHeads   int32
	CopyCount int32 // grid size
}

// Copy is one work item of materialise.
type Copy struct {
	SrcPage  int32 // index in PageTable of the segment's first page
	SrcBegin int32 // first token, counted from the start of the segment
	DstPage  int32 // index in PageTable of the sequence's first page
	DstBegin int32 // place of token SrcBegin, counted from the start of the sequence's pages
	Count    int32 // tokens
	Offset   int32 // position of the segment's token 0 in the sequence
	Reserved [2]int32
}

// ScheduleParams launches schedule: the work lists of a decode step, from what its sequences
// hold. They are, to the bit, those that the builders of package schedule make of it. The grid is one block.
//
// Each sequence fills one tile of decode, there is no window, SplitTokens is at least
// PageSize, and segments of one page have as many tokens each. The rooms bound what may be written, and must be enough.
type ScheduleParams struct {
	Counts    DevicePtr // int32 [2]: how many sequences there are, and segments
	Sequences DevicePtr // Sequence [SequenceRoom], by their query tokens, which follow one another from 0
	Segments  DevicePtr // Segment [SegmentRoom]: of the sequences, one's behind the other's

	// Lists of Items and Runs begin at multiples of 16 bytes.
	Items     DevicePtr // Item [ItemRoom] of decode; those that do nothing are last
	Runs      DevicePtr // Run []
	SlotBegin DevicePtr // int32 [TokenRoom+1], for merge

	// Of shared decode, all null where there is none: all is left to decode.
	SharedItems   DevicePtr // Item [SharedItemRoom]
	SharedRuns    DevicePtr // Run []
	Members       DevicePtr // Member [MemberRoom]
	MemberOffsets DevicePtr // int32 []
	Spared        DevicePtr // int64 [1], to which are added the tokens of KV, for each KV head, that decode alone would read besides

	Scratch DevicePtr // int32 [ScratchWords()]

	SequenceRoom   int32
	SegmentRoom    int32
	ItemRoom       int32
	PartRoom       int32 // most parts of a sequence
	TokenRoom      int32
	SharedItemRoom int32
	MemberRoom     int32

	// As in package schedule's Options.
	Rows         int32
	Group        int32
	Causal       int32 // 1: own tokens see only what comes before them
	PageSize     int32
	SplitTokens  int32
	MaxItems     int32 // 0: no limit
	PartsPerItem int32 // 0: the fastest for the step
	Whole        int32 // 1: an item's parts are walked as one
	AtOnce       int32
	OnceTokens   int32 // 0: no limit

	// As in its SharedOptions.
	SharedRows   int32
	SharedKeys   int32
	SharedBlocks int32
	KVHeads      int32
	Bitwise      int32 // 1: every chunk goes through shared decode
}

// Sequence is query tokens of one sequence, and the segments that it attends to.
type Sequence struct {
	QueryBegin   int32 // first query token
	QueryCount   int32 // at least 1
	SegmentBegin int32 // first segment
	SegmentEnd   int32 // one past the last
}

// Segment is a chunk, or the sequence's own tokens, at an offset.
type Segment struct {
	Page   int32 // index in the page table of the segment's first page
	Tokens int32
	Offset int32 // position of token 0 in the sequence
	Own    int32 // 1: the sequence's own tokens, of which its query tokens are the last
}
