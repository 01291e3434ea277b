// What crosses the border between Go and a kernel. Made from runtime/abi by
// `go test ./gen/emit -run ABIHeader -update`; do not edit.
#pragma once
#include "ptx/sm80.cuh"

// The offset of a field; NVRTC has no offsetof without a header.
#ifdef __CUDACC_RTC__
#define KGEN_OFFSET(type, field) __INTADDR__(&((type*)0)->field)
#else
#define KGEN_OFFSET(type, field) __builtin_offsetof(type, field)
#endif

namespace kgen {

// VISIBLE is the Run.causal of a run whose every token all query tokens see.
constexpr int VISIBLE = 1 << 30;
// FINAL is the Item.slot of an item that covers all of its rows' keys and
// writes Out itself.
constexpr int FINAL = -1;
// ROPE_LOW_BITS is the number of bits of a position that the low level of a
// RoPE table covers: position = high<<ROPE_LOW_BITS + low.
constexpr int ROPE_LOW_BITS = 5;

// AttendParams launches prefill, extend, decode and shared_decode.
// The grid is (item_count, kv_heads), or for family sm90 any number of blocks, among
// which the pairs of an item and a KV head are shared out; items with q_count 0 do
// nothing, and come last.
struct AttendParams {
  void* q;                   // [tokens][query heads][head dim], un-rotated; element type of the spec
  void* k_cache;             // pages, see the spec's cache layout
  void* v_cache;             // pages, see the spec's cache layout
  void* out;                 // [tokens][query heads][v head dim], element type of the spec; not over q, as it holds other numbers before the kernel ends
  void* lse;                 // float32 [tokens][query heads], natural log, sink logit left out; may be null
  void* partial_out;         // float32 [slots][query heads][v head dim]; used where Item.slot >= 0, and as scratch
  void* partial_lse;         // float32 [slots][query heads], base 2, scores scaled
  void* items;               // Item [item_count]
  void* runs;                // Run []
  void* page_table;          // int32 []: page indices, addressed by Run.page
  void* positions;           // int32 [tokens]: position of each query token in its sequence
  void* rope;                // float32 (cos, sin) [1<<ROPE_LOW_BITS + high rows][rotary dim / 2]
  void* sink_logits;         // float32 [query heads]; null unless the spec has sink_logits
  void* k_map;               // tensor map of k_cache, 128 bytes; null but for family sm90
  void* v_map;               // tensor map of v_cache, 128 bytes; null but for family sm90

  void* members;             // Member []: the query tokens of shared_decode's items; null for the other kinds
  void* member_offsets;      // int32 []: see Run.offset; null but for shared_decode

  // uint32 [2], zeros before and after the launch, of no other launch at the same time:
  // blocks of family sm90 take work by it as they come to the end of what they have. Null,
  // and always for decode: each has a share that is fixed from the start. Results are the
  // same.
  void* counter;

  int32_t q_token_stride;    // elements from one token to the next in q
  int32_t out_token_stride;  // elements from one token to the next in out
  int32_t kv_heads;          // query heads are kv_heads * group
  int32_t item_count;        // grid size
  float scale;               // score scale, the RoPE attention factor of full rotation included
  float rope_scale;          // factor on the rotated dimensions of the query; 1 but for scaled partial rotation
  int32_t run_count;         // of runs, and
  int32_t page_count;        // of page_table: elements that are worth reading ahead of their use; 0 is as right, and slower
};
static_assert(sizeof(AttendParams) == 176, "AttendParams: size");
static_assert(KGEN_OFFSET(AttendParams, q) == 0, "AttendParams.q: offset");
static_assert(KGEN_OFFSET(AttendParams, k_cache) == 8, "AttendParams.k_cache: offset");
static_assert(KGEN_OFFSET(AttendParams, v_cache) == 16, "AttendParams.v_cache: offset");
static_assert(KGEN_OFFSET(AttendParams, out) == 24, "AttendParams.out: offset");
static_assert(KGEN_OFFSET(AttendParams, lse) == 32, "AttendParams.lse: offset");
static_assert(KGEN_OFFSET(AttendParams, partial_out) == 40, "AttendParams.partial_out: offset");
static_assert(KGEN_OFFSET(AttendParams, partial_lse) == 48, "AttendParams.partial_lse: offset");
static_assert(KGEN_OFFSET(AttendParams, items) == 56, "AttendParams.items: offset");
static_assert(KGEN_OFFSET(AttendParams, runs) == 64, "AttendParams.runs: offset");
static_assert(KGEN_OFFSET(AttendParams, page_table) == 72, "AttendParams.page_table: offset");
static_assert(KGEN_OFFSET(AttendParams, positions) == 80, "AttendParams.positions: offset");
static_assert(KGEN_OFFSET(AttendParams, rope) == 88, "AttendParams.rope: offset");
static_assert(KGEN_OFFSET(AttendParams, sink_logits) == 96, "AttendParams.sink_logits: offset");
static_assert(KGEN_OFFSET(AttendParams, k_map) == 104, "AttendParams.k_map: offset");
static_assert(KGEN_OFFSET(AttendParams, v_map) == 112, "AttendParams.v_map: offset");
static_assert(KGEN_OFFSET(AttendParams, members) == 120, "AttendParams.members: offset");
static_assert(KGEN_OFFSET(AttendParams, member_offsets) == 128, "AttendParams.member_offsets: offset");
static_assert(KGEN_OFFSET(AttendParams, counter) == 136, "AttendParams.counter: offset");
static_assert(KGEN_OFFSET(AttendParams, q_token_stride) == 144, "AttendParams.q_token_stride: offset");
static_assert(KGEN_OFFSET(AttendParams, out_token_stride) == 148, "AttendParams.out_token_stride: offset");
static_assert(KGEN_OFFSET(AttendParams, kv_heads) == 152, "AttendParams.kv_heads: offset");
static_assert(KGEN_OFFSET(AttendParams, item_count) == 156, "AttendParams.item_count: offset");
static_assert(KGEN_OFFSET(AttendParams, scale) == 160, "AttendParams.scale: offset");
static_assert(KGEN_OFFSET(AttendParams, rope_scale) == 164, "AttendParams.rope_scale: offset");
static_assert(KGEN_OFFSET(AttendParams, run_count) == 168, "AttendParams.run_count: offset");
static_assert(KGEN_OFFSET(AttendParams, page_count) == 172, "AttendParams.page_count: offset");

// Item is one work item: a tile of query tokens against a list of runs. One of
// shared_decode names its query tokens by Members: q_begin and q_count count members,
// each with a slot of its own; q_index, Item.slot and slot_stride are 0.
//
// The keys of a tile are cut into parts, of which each has a result: outputs o and lse,
// base 2. Two of them, a before b, fold into one, with m = max(lse_a, lse_b),
// w_a = 2^(lse_a - m), w_b = 2^(lse_b - m) and s = w_a + w_b:
//
// 	o = o_a (w_a / s) + o_b (w_b / s), lse = m + log2(s); two of lse -inf: zeros, -inf
//
// A tile's parts fold as a binary counter counts: the result of part i, from 0, folds with
// the one kept at level 0, then level 1 and so on as long as i has that bit, and is kept at
// the next; that of the last part, p, with those of all levels that are bits of p,
// ascending. So parts in groups of a power of two, of which each is one item, have the same
// bits as an item for each part: kernels of family sm90 fold an item's parts, merge the
// results of items. For other kernels an item has one part.
struct Item {
  int32_t q_begin;      // first query token, or first member
  int32_t q_count;      // query tokens, at most tile rows / group; 0 for a padding item
  int32_t q_index;      // index of q_begin in its sequence's block of query tokens, for Run.causal
  int32_t run_begin;    // first run
  int32_t run_end;      // one past the last run
  int32_t slot;         // partial slot of token q_begin, or FINAL
  int32_t slot_stride;  // slots from one token's to the next token's
  int32_t scratch;      // of several parts: first slot of those that the kernel folds by, q_count of them at each level
};
static_assert(sizeof(Item) == 32, "Item: size");
static_assert(KGEN_OFFSET(Item, q_begin) == 0, "Item.q_begin: offset");
static_assert(KGEN_OFFSET(Item, q_count) == 4, "Item.q_count: offset");
static_assert(KGEN_OFFSET(Item, q_index) == 8, "Item.q_index: offset");
static_assert(KGEN_OFFSET(Item, run_begin) == 12, "Item.run_begin: offset");
static_assert(KGEN_OFFSET(Item, run_end) == 16, "Item.run_end: offset");
static_assert(KGEN_OFFSET(Item, slot) == 20, "Item.slot: offset");
static_assert(KGEN_OFFSET(Item, slot_stride) == 24, "Item.slot_stride: offset");
static_assert(KGEN_OFFSET(Item, scratch) == 28, "Item.scratch: offset");

// Member is one query token of an item of shared_decode; a token that stands in
// several items has a slot for each.
struct Member {
  int32_t token;  // query token
  int32_t slot;   // partial slot of its results
};
static_assert(sizeof(Member) == 8, "Member: size");
static_assert(KGEN_OFFSET(Member, token) == 0, "Member.token: offset");
static_assert(KGEN_OFFSET(Member, slot) == 4, "Member.slot: offset");

// Run is a token range of one segment inside a work item.
struct Run {
  int32_t page;       // index in page_table of the segment's first page
  int32_t begin;      // first token, counted from the start of the segment; the start of a page
  int32_t end;        // one past the last token
  int32_t offset;     // position of the segment's token 0 in the sequence; shared_decode: index in member_offsets of those positions, one for each member of the item
  int32_t causal;     // token l is seen by query token i of the block iff l <= i + causal
  int32_t once;       // 1: nothing of the launch reads these tokens at another time, so the L2 cache need not keep them; results are the same
  int32_t ends_part;  // 1: the run is the last of a part of its item; 0 may stand where the item has one part
  int32_t reserved;
};
static_assert(sizeof(Run) == 32, "Run: size");
static_assert(KGEN_OFFSET(Run, page) == 0, "Run.page: offset");
static_assert(KGEN_OFFSET(Run, begin) == 4, "Run.begin: offset");
static_assert(KGEN_OFFSET(Run, end) == 8, "Run.end: offset");
static_assert(KGEN_OFFSET(Run, offset) == 12, "Run.offset: offset");
static_assert(KGEN_OFFSET(Run, causal) == 16, "Run.causal: offset");
static_assert(KGEN_OFFSET(Run, once) == 20, "Run.once: offset");
static_assert(KGEN_OFFSET(Run, ends_part) == 24, "Run.ends_part: offset");
static_assert(KGEN_OFFSET(Run, reserved) == 28, "Run.reserved: offset");

// AppendParams launches append: rotate K as the encoding says, write K and V
// to pages. The grid is (Tokens, 1).
struct AppendParams {
  void* k;                 // [tokens][KV heads][head dim], un-rotated
  void* v;                 // [tokens][KV heads][v head dim]
  void* k_cache;           // pages
  void* v_cache;           // pages
  void* slots;             // int32 [tokens]: page * page size + place in the page; negative: skip the token
  void* positions;         // int32 [tokens]: segment: position in the chunk; baked: position in the sequence; raw: not read
  void* rope;              // as in AttendParams

  int32_t k_token_stride;  // elements from one token to the next in k
  int32_t v_token_stride;  // elements from one token to the next in v
  int32_t kv_heads;
  int32_t tokens;          // grid size
};
static_assert(sizeof(AppendParams) == 72, "AppendParams: size");
static_assert(KGEN_OFFSET(AppendParams, k) == 0, "AppendParams.k: offset");
static_assert(KGEN_OFFSET(AppendParams, v) == 8, "AppendParams.v: offset");
static_assert(KGEN_OFFSET(AppendParams, k_cache) == 16, "AppendParams.k_cache: offset");
static_assert(KGEN_OFFSET(AppendParams, v_cache) == 24, "AppendParams.v_cache: offset");
static_assert(KGEN_OFFSET(AppendParams, slots) == 32, "AppendParams.slots: offset");
static_assert(KGEN_OFFSET(AppendParams, positions) == 40, "AppendParams.positions: offset");
static_assert(KGEN_OFFSET(AppendParams, rope) == 48, "AppendParams.rope: offset");
static_assert(KGEN_OFFSET(AppendParams, k_token_stride) == 56, "AppendParams.k_token_stride: offset");
static_assert(KGEN_OFFSET(AppendParams, v_token_stride) == 60, "AppendParams.v_token_stride: offset");
static_assert(KGEN_OFFSET(AppendParams, kv_heads) == 64, "AppendParams.kv_heads: offset");
static_assert(KGEN_OFFSET(AppendParams, tokens) == 68, "AppendParams.tokens: offset");

// MergeParams launches merge: partial results of the splits to outputs, which uses the
// partial results up. The grid is (tokens, ceil(query heads / warps)); a token with no
// slots is left as it is.
struct MergeParams {
  void* partial_out;         // float32 [slots][query heads][v head dim]; merge may leave other numbers there
  void* partial_lse;         // float32 [slots][query heads], base 2, scores scaled; likewise
  void* out;                 // [tokens][query heads][v head dim]
  void* lse;                 // float32 [tokens][query heads], natural log; may be null
  void* slot_begin;          // int32 [tokens+1]: token t owns the slots slot_begin[t] to slot_begin[t+1], which fold as an item's parts do
  void* sink_logits;         // float32 [query heads]; null unless the spec has sink_logits

  int32_t out_token_stride;  // elements from one token to the next in out
  int32_t q_heads;
  int32_t tokens;
  int32_t reserved;
};
static_assert(sizeof(MergeParams) == 64, "MergeParams: size");
static_assert(KGEN_OFFSET(MergeParams, partial_out) == 0, "MergeParams.partial_out: offset");
static_assert(KGEN_OFFSET(MergeParams, partial_lse) == 8, "MergeParams.partial_lse: offset");
static_assert(KGEN_OFFSET(MergeParams, out) == 16, "MergeParams.out: offset");
static_assert(KGEN_OFFSET(MergeParams, lse) == 24, "MergeParams.lse: offset");
static_assert(KGEN_OFFSET(MergeParams, slot_begin) == 32, "MergeParams.slot_begin: offset");
static_assert(KGEN_OFFSET(MergeParams, sink_logits) == 40, "MergeParams.sink_logits: offset");
static_assert(KGEN_OFFSET(MergeParams, out_token_stride) == 48, "MergeParams.out_token_stride: offset");
static_assert(KGEN_OFFSET(MergeParams, q_heads) == 52, "MergeParams.q_heads: offset");
static_assert(KGEN_OFFSET(MergeParams, tokens) == 56, "MergeParams.tokens: offset");
static_assert(KGEN_OFFSET(MergeParams, reserved) == 60, "MergeParams.reserved: offset");

// MaterialiseParams launches materialise, the Block-Attention baseline: copy
// segments into a sequence's own pages with K at its positions in the
// sequence. The grid is (copy_count, kv_heads). Without dst_v it rotates keys ahead of a kernel
// that reads them rotated: copies K alone, to pages that no page table names, as Copy.dst_page
// is then the first page itself.
struct MaterialiseParams {
  void* src_k;         // pages, in the spec's encoding
  void* src_v;         // pages
  void* dst_k;         // pages, baked
  void* dst_v;         // pages; null: K alone is copied
  void* copies;        // Copy [copy_count]
  void* page_table;    // int32 []: page indices of source and destination
  void* rope;          // as in AttendParams

  int32_t kv_heads;
  int32_t copy_count;  // grid size
};
static_assert(sizeof(MaterialiseParams) == 64, "MaterialiseParams: size");
static_assert(KGEN_OFFSET(MaterialiseParams, src_k) == 0, "MaterialiseParams.src_k: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, src_v) == 8, "MaterialiseParams.src_v: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, dst_k) == 16, "MaterialiseParams.dst_k: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, dst_v) == 24, "MaterialiseParams.dst_v: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, copies) == 32, "MaterialiseParams.copies: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, page_table) == 40, "MaterialiseParams.page_table: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, rope) == 48, "MaterialiseParams.rope: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, kv_heads) == 56, "MaterialiseParams.kv_heads: offset");
static_assert(KGEN_OFFSET(MaterialiseParams, copy_count) == 60, "MaterialiseParams.copy_count: offset");

// Copy is one work item of materialise.
struct Copy {
  int32_t src_page;     // index in page_table of the segment's first page
  int32_t src_begin;    // first token, counted from the start of the segment
  int32_t dst_page;     // index in page_table of the sequence's first page
  int32_t dst_begin;    // place of token src_begin, counted from the start of the sequence's pages
  int32_t count;        // tokens
  int32_t offset;       // position of the segment's token 0 in the sequence
  int32_t reserved[2];
};
static_assert(sizeof(Copy) == 32, "Copy: size");
static_assert(KGEN_OFFSET(Copy, src_page) == 0, "Copy.src_page: offset");
static_assert(KGEN_OFFSET(Copy, src_begin) == 4, "Copy.src_begin: offset");
static_assert(KGEN_OFFSET(Copy, dst_page) == 8, "Copy.dst_page: offset");
static_assert(KGEN_OFFSET(Copy, dst_begin) == 12, "Copy.dst_begin: offset");
static_assert(KGEN_OFFSET(Copy, count) == 16, "Copy.count: offset");
static_assert(KGEN_OFFSET(Copy, offset) == 20, "Copy.offset: offset");
static_assert(KGEN_OFFSET(Copy, reserved) == 24, "Copy.reserved: offset");

// ScheduleParams launches schedule: the work lists of a decode step, from what its sequences
// hold. They are, to the bit, those that the builders of package schedule make of it. The grid is one block.
//
// Each sequence fills one tile of decode, there is no window, split_tokens is at least
// page_size, and segments of one page have as many tokens each. The rooms bound what may be written, and must be enough.
struct ScheduleParams {
  void* counts;              // int32 [2]: how many sequences there are, and segments
  void* sequences;           // Sequence [sequence_room], by their query tokens, which follow one another from 0
  void* segments;            // Segment [segment_room]: of the sequences, one's behind the other's

  // Lists of items and runs begin at multiples of 16 bytes.
  void* items;               // Item [item_room] of decode; those that do nothing are last
  void* runs;                // Run []
  void* slot_begin;          // int32 [token_room+1], for merge

  // Of shared decode, all null where there is none: all is left to decode.
  void* shared_items;        // Item [shared_item_room]
  void* shared_runs;         // Run []
  void* members;             // Member [member_room]
  void* member_offsets;      // int32 []
  void* spared;              // int64 [1], to which are added the tokens of KV, for each KV head, that decode alone would read besides

  void* scratch;             // int32 [ScratchWords()]

  int32_t sequence_room;
  int32_t segment_room;
  int32_t item_room;
  int32_t part_room;         // most parts of a sequence
  int32_t token_room;
  int32_t shared_item_room;
  int32_t member_room;

  // As in package schedule's Options.
  int32_t rows;
  int32_t group;
  int32_t causal;            // 1: own tokens see only what comes before them
  int32_t page_size;
  int32_t split_tokens;
  int32_t max_items;         // 0: no limit
  int32_t parts_per_item;    // 0: the fastest for the step
  int32_t whole;             // 1: an item's parts are walked as one
  int32_t at_once;
  int32_t once_tokens;       // 0: no limit

  // As in its SharedOptions.
  int32_t shared_rows;
  int32_t shared_keys;
  int32_t shared_blocks;
  int32_t kv_heads;
  int32_t bitwise;           // 1: every chunk goes through shared decode
};
static_assert(sizeof(ScheduleParams) == 184, "ScheduleParams: size");
static_assert(KGEN_OFFSET(ScheduleParams, counts) == 0, "ScheduleParams.counts: offset");
static_assert(KGEN_OFFSET(ScheduleParams, sequences) == 8, "ScheduleParams.sequences: offset");
static_assert(KGEN_OFFSET(ScheduleParams, segments) == 16, "ScheduleParams.segments: offset");
static_assert(KGEN_OFFSET(ScheduleParams, items) == 24, "ScheduleParams.items: offset");
static_assert(KGEN_OFFSET(ScheduleParams, runs) == 32, "ScheduleParams.runs: offset");
static_assert(KGEN_OFFSET(ScheduleParams, slot_begin) == 40, "ScheduleParams.slot_begin: offset");
static_assert(KGEN_OFFSET(ScheduleParams, shared_items) == 48, "ScheduleParams.shared_items: offset");
static_assert(KGEN_OFFSET(ScheduleParams, shared_runs) == 56, "ScheduleParams.shared_runs: offset");
static_assert(KGEN_OFFSET(ScheduleParams, members) == 64, "ScheduleParams.members: offset");
static_assert(KGEN_OFFSET(ScheduleParams, member_offsets) == 72, "ScheduleParams.member_offsets: offset");
static_assert(KGEN_OFFSET(ScheduleParams, spared) == 80, "ScheduleParams.spared: offset");
static_assert(KGEN_OFFSET(ScheduleParams, scratch) == 88, "ScheduleParams.scratch: offset");
static_assert(KGEN_OFFSET(ScheduleParams, sequence_room) == 96, "ScheduleParams.sequence_room: offset");
static_assert(KGEN_OFFSET(ScheduleParams, segment_room) == 100, "ScheduleParams.segment_room: offset");
static_assert(KGEN_OFFSET(ScheduleParams, item_room) == 104, "ScheduleParams.item_room: offset");
static_assert(KGEN_OFFSET(ScheduleParams, part_room) == 108, "ScheduleParams.part_room: offset");
static_assert(KGEN_OFFSET(ScheduleParams, token_room) == 112, "ScheduleParams.token_room: offset");
static_assert(KGEN_OFFSET(ScheduleParams, shared_item_room) == 116, "ScheduleParams.shared_item_room: offset");
static_assert(KGEN_OFFSET(ScheduleParams, member_room) == 120, "ScheduleParams.member_room: offset");
static_assert(KGEN_OFFSET(ScheduleParams, rows) == 124, "ScheduleParams.rows: offset");
static_assert(KGEN_OFFSET(ScheduleParams, group) == 128, "ScheduleParams.group: offset");
static_assert(KGEN_OFFSET(ScheduleParams, causal) == 132, "ScheduleParams.causal: offset");
static_assert(KGEN_OFFSET(ScheduleParams, page_size) == 136, "ScheduleParams.page_size: offset");
static_assert(KGEN_OFFSET(ScheduleParams, split_tokens) == 140, "ScheduleParams.split_tokens: offset");
static_assert(KGEN_OFFSET(ScheduleParams, max_items) == 144, "ScheduleParams.max_items: offset");
static_assert(KGEN_OFFSET(ScheduleParams, parts_per_item) == 148, "ScheduleParams.parts_per_item: offset");
static_assert(KGEN_OFFSET(ScheduleParams, whole) == 152, "ScheduleParams.whole: offset");
static_assert(KGEN_OFFSET(ScheduleParams, at_once) == 156, "ScheduleParams.at_once: offset");
static_assert(KGEN_OFFSET(ScheduleParams, once_tokens) == 160, "ScheduleParams.once_tokens: offset");
static_assert(KGEN_OFFSET(ScheduleParams, shared_rows) == 164, "ScheduleParams.shared_rows: offset");
static_assert(KGEN_OFFSET(ScheduleParams, shared_keys) == 168, "ScheduleParams.shared_keys: offset");
static_assert(KGEN_OFFSET(ScheduleParams, shared_blocks) == 172, "ScheduleParams.shared_blocks: offset");
static_assert(KGEN_OFFSET(ScheduleParams, kv_heads) == 176, "ScheduleParams.kv_heads: offset");
static_assert(KGEN_OFFSET(ScheduleParams, bitwise) == 180, "ScheduleParams.bitwise: offset");

// Sequence is query tokens of one sequence, and the segments that it attends to.
struct Sequence {
  int32_t query_begin;    // first query token
  int32_t query_count;    // at least 1
  int32_t segment_begin;  // first segment
  int32_t segment_end;    // one past the last
};
static_assert(sizeof(Sequence) == 16, "Sequence: size");
static_assert(KGEN_OFFSET(Sequence, query_begin) == 0, "Sequence.query_begin: offset");
static_assert(KGEN_OFFSET(Sequence, query_count) == 4, "Sequence.query_count: offset");
static_assert(KGEN_OFFSET(Sequence, segment_begin) == 8, "Sequence.segment_begin: offset");
static_assert(KGEN_OFFSET(Sequence, segment_end) == 12, "Sequence.segment_end: offset");

// Segment is a chunk, or the sequence's own tokens, at an offset.
struct Segment {
  int32_t page;    // index in the page table of the segment's first page
  int32_t tokens;
  int32_t offset;  // position of token 0 in the sequence
  int32_t own;     // 1: the sequence's own tokens, of which its query tokens are the last
};
static_assert(sizeof(Segment) == 16, "Segment: size");
static_assert(KGEN_OFFSET(Segment, page) == 0, "Segment.page: offset");
static_assert(KGEN_OFFSET(Segment, tokens) == 4, "Segment.tokens: offset");
static_assert(KGEN_OFFSET(Segment, offset) == 8, "Segment.offset: offset");
static_assert(KGEN_OFFSET(Segment, own) == 12, "Segment.own: offset");

}  // namespace kgen
