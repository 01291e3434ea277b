// A work item as a kernel sees it: its rows, its keys, its results.
#pragma once
#include "fold.cuh"
#include "mask.cuh"
#include "rotate.cuh"
#include "softmax.cuh"

namespace kgen {

template <class Config>
__device__ __forceinline__ PagedTokens<Config, Config::head_dim> paged_keys(const AttendParams& params, int page, int kv_head) {
  return {pointer<unsigned char>(params.k_cache), pointer<int32_t>(params.page_table) + page, kv_head, params.kv_heads};
}

template <class Config>
__device__ __forceinline__ PagedTokens<Config, Config::v_head_dim> paged_values(const AttendParams& params, int page, int kv_head) {
  return {pointer<unsigned char>(params.v_cache), pointer<int32_t>(params.page_table) + page, kv_head, params.kv_heads};
}

// Of a cluster the blocks walk an item's keys together, each for some of its query tokens.
#if KGEN_CLUSTER
__device__ __forceinline__ int block_in_cluster() { return ptx::cluster_rank(); }
#else
__device__ __forceinline__ int block_in_cluster() { return 0; }
#endif

// Of an item's q_count query tokens those that are this block's: of its own tile's rows, whose first is
// token `first` of the item. Each block of a cluster takes as many as its tile has rows for,
// so the last may have fewer, or none.
struct OwnTokens {
  int first, count;
};
template <class Config>
__device__ __forceinline__ OwnTokens own_tokens(int q_count) {
#if KGEN_CLUSTER
  constexpr int most = Config::rows / Config::group;
  const int first = block_in_cluster() * most, left = q_count - first;
  if (left <= 0) return {0, 0};
  return {first, left < most ? left : most};
#else
  return {0, q_count};
#endif
}

// The block's rows of an item of so many query tokens, the first of its tile's.
template <class Config>
__device__ __forceinline__ int own_rows(int q_count) { return own_tokens<Config>(q_count).count * Config::group; }

constexpr int no_base = -2147483647 - 1;

// What a tile's queries are rotated against: where its keys were encoded as position
// 0, or in shared decode the place of the members' such positions in member_offsets,
// no_base where there is no tile.
__device__ __forceinline__ int rotation_base(const KeyTile& tile) {
#if KGEN_ROTATED_PER_RUN
  return tile.exists() ? tile.offset : no_base;
#else
  return 0;
#endif
}

// Whether queries that are rotated against one base (no_base: against none yet) must be
// rotated anew for a tile.
__device__ __forceinline__ bool needs_rotation(int rotated_base, const KeyTile& tile) {
#if KGEN_ROTATED_PER_RUN
  return rotated_base != tile.offset;
#else
  return rotated_base == no_base;
#endif
}

// The first tile of the runs behind a tile's for which queries must be rotated anew.
__device__ __forceinline__ KeyTile next_rotation(const AttendParams& params, KeyTile tile, int run_end) {
#if KGEN_ROTATED_PER_RUN
  const int base = rotation_base(tile);
  do tile = first_tile(params, tile.run + 1, run_end);
  while (tile.exists() && !needs_rotation(base, tile));
  return tile;
#else
  return {-1, 0, 0, 0, 0, 0};
#endif
}

#if KGEN_ENCODING_RAW
// The position that a tile's first key is rotated to.
__device__ __forceinline__ int first_key_position(const KeyTile& tile) {
#if KGEN_SHARED_DECODE
  return tile.begin;  // in the segment, which stands at another offset for each member
#else
  return tile.offset + tile.begin;
#endif
}
#endif

#if KGEN_SHARED_DECODE
__device__ __forceinline__ const Member* members_of(const AttendParams& params, const Item& item) {
  return pointer<Member>(params.members) + item.q_begin;
}
#endif

template <class Config>
__device__ __forceinline__ QueryRows<Config> query_rows(const AttendParams& params, const Item& item, int kv_head) {
  QueryRows<Config> rows;
  rows.token_bytes = 2ll * params.q_token_stride;
  rows.count = own_rows<Config>(item.q_count);
#if KGEN_SHARED_DECODE
  const int first_token = 0;
  rows.members = members_of(params, item);
  rows.offsets = pointer<int32_t>(params.member_offsets);
#else
  const int first_token = item.q_begin + own_tokens<Config>(item.q_count).first;
#endif
  rows.q = pointer<unsigned char>(params.q) + first_token * rows.token_bytes + kv_head * (Config::group * Config::head_dim * 2);
  rows.positions = pointer<int32_t>(params.positions) + first_token;
  return rows;
}

// The keys of a tile's run that a row of the tile sees. Rows that do not exist see what
// the item's first token sees; nobody reads their results.
template <class Config>
__device__ __forceinline__ VisibleKeys visible_to_row(const AttendParams& params, const Item& item, const KeyTile& tile, int row) {
  const OwnTokens own = own_tokens<Config>(item.q_count);
  const int token = own.first + (row < own.count * Config::group ? row / Config::group : 0);
#if KGEN_SHARED_DECODE
  const int position = pointer<int32_t>(params.positions)[members_of(params, item)[token].token];
  return visible_keys<Config>(tile, 0, position, pointer<int32_t>(params.member_offsets)[tile.offset + token]);
#else
  return visible_keys<Config>(tile, item.q_index + token, pointer<int32_t>(params.positions)[item.q_begin + token], tile.offset);
#endif
}

// The greatest position of the block's query tokens of an item, to all lanes of a warp; shared decode has no use for it.
template <class Config>
__device__ __forceinline__ int last_position(const AttendParams& params, const Item& item, int lane) {
#if KGEN_SHARED_DECODE
  return any_position;
#else
  const OwnTokens own = own_tokens<Config>(item.q_count);
  const int32_t* positions = pointer<int32_t>(params.positions) + item.q_begin + own.first;
  int last = 0;
#pragma unroll 1
  for (int token = lane; token < own.count; token += 32) last = positions[token] > last ? positions[token] : last;
  return ptx::warp_maximum(last);
#endif
}

// With a window, one warp looks for an item's last position, which needs_mask asks for, and lane 0 keeps it in shared memory: registers are dear.
template <class Config, class Shared>
__device__ __forceinline__ void keep_last_position(const AttendParams& params, const Item& item, int lane, Shared& shared) {
#if KGEN_WINDOW
  const int last = last_position<Config>(params, item, lane);
  if (lane == 0) shared.last_position = last;
#endif
}
template <class Shared>
__device__ __forceinline__ int kept_last_position(const Shared& shared) {
#if KGEN_WINDOW
  return shared.last_position;
#else
  return any_position;
#endif
}

// What makes scores exponents of 2 (where they are capped, those that cap_scores takes), of queries that are multiplied by it before.
template <class Config>
__device__ __forceinline__ float exponent_factor(const AttendParams& params) {
#if KGEN_SOFT_CAP
  return params.scale * (2.f * log2_e / (Config::soft_cap * Config::query_scale));
#else
  return params.scale * (log2_e / Config::query_scale);
#endif
}

// What aligned queries are multiplied by as they are rotated for a run: where scores are to be exponents all of that, in the
// rotation's elements. These are fp16: where it would leave their range, it is left to the softmax. (kgen plans no such kernel
// for a spec's scale that would: Plan.ScalesQueries. A larger one given at a launch underflows rows of negative scores.)
template <class Config>
__device__ __forceinline__ float rotation_factor(const AttendParams& params) {
#if KGEN_SCALED_QUERIES
  const float factor = exponent_factor<Config>(params);
  return 0x1p-12f <= factor && factor <= 0x1p14f ? factor : 1.f;
#else
  return 1.f;
#endif
}

// What the dimensions of queries that are rotated are multiplied by then: of aligned ones, as they are aligned.
template <class Config>
__device__ __forceinline__ float query_factor(const AttendParams& params) {
#if KGEN_SCALED_QUERIES
#if !KGEN_ALIGNED_QUERIES
  return exponent_factor<Config>(params);
#endif
#endif
  // Of whole heads rope_scale is in the scores' scale.
  return Config::rotary_dim == Config::head_dim ? Config::query_scale : Config::query_scale * params.rope_scale;
}

// The factor from a score to its exponent of 2 in the softmax, or where scores are capped in cap_scores.
template <class Config>
__device__ __forceinline__ float product_exponent(const AttendParams& params) {
#if KGEN_SCALED_QUERIES
#if KGEN_ALIGNED_QUERIES
  if (rotation_factor<Config>(params) == 1.f) return exponent_factor<Config>(params);
#endif
  return 1.f;
#else
  return exponent_factor<Config>(params);
#endif
}

// That of the softmax.
template <class Config>
__device__ __forceinline__ float score_exponent(const AttendParams& params) {
#if KGEN_SOFT_CAP
  return 1.f;  // cap_scores makes exponents of them
#else
  return product_exponent<Config>(params);
#endif
}

// Whether the item writes its rows' outputs itself. In shared decode no item does.
__device__ __forceinline__ bool is_final(const Item& item) {
#if KGEN_SHARED_DECODE
  return false;
#else
  return item.slot == FINAL;
#endif
}

template <class Config>
__device__ __forceinline__ int query_head(int kv_head, int row) { return kv_head * Config::group + row % Config::group; }

// Where one row's results go.
struct RowResult {
  long long vector;  // index of its head's vector: (token or slot) * query heads + head
  int token, head;   // query token, query head
};

template <class Config>
__device__ __forceinline__ RowResult row_result(const AttendParams& params, const Item& item, int kv_head, int row) {
  const int token = own_tokens<Config>(item.q_count).first + row / Config::group, heads = params.kv_heads * Config::group;
  RowResult r;
  r.head = query_head<Config>(kv_head, row);
#if KGEN_SHARED_DECODE
  const Member member = members_of(params, item)[token];
  r.token = member.token;
  const long long place = member.slot;
#else
  r.token = item.q_begin + token;
  const long long place = is_final(item) ? r.token : item.slot + static_cast<long long>(token) * item.slot_stride;
#endif
  r.vector = place * heads + r.head;
  return r;
}

// A row's places: of its output, final or partial, and of its log-sum-exp; null: that goes nowhere.
struct RowPlaces {
  unsigned char* output;
  float* lse;
};

template <class Config>
__device__ __forceinline__ RowPlaces row_places(const AttendParams& params, const Item& item, const RowResult& r) {
  const bool final = is_final(item);
  const long long output = final ? 2 * (r.token * static_cast<long long>(params.out_token_stride) + r.head * Config::v_head_dim) : 4 * r.vector * Config::v_head_dim;
  float* const lse = static_cast<float*>(final ? params.lse : params.partial_lse);
  return {static_cast<unsigned char*>(final ? params.out : params.partial_out) + output, lse != nullptr ? lse + r.vector : nullptr};
}

// What is stored of a row's log-sum-exp, base 2: natural for a final result, as it is for a partial one.
__device__ __forceinline__ float stored_log_sum_exp(bool final, float lse2) { return final ? lse2 * ln_2 : lse2; }

// The vectors that an item's rows become, for one KV head: final ones in the output, others in
// partial_out. Where they are is found once, and costs a few instructions a row.
template <class Config>
struct ResultRows {
#if KGEN_SHARED_DECODE
  const AttendParams& params;
  const Item& item;
  int kv_head;

  __device__ __forceinline__ static ResultRows of(const AttendParams& params, const Item& item, int kv_head) { return {params, item, kv_head}; }
  __device__ __forceinline__ unsigned char* bytes(int row) const {
    return row_places<Config>(params, item, row_result<Config>(params, item, kv_head, row)).output;
  }
#else
  unsigned char* first;   // row 0
  long long token_bytes;  // from a token's heads to the next one's
  int head_bytes;

  __device__ __forceinline__ static ResultRows of(const AttendParams& params, const Item& item, int kv_head) {
    unsigned char* const first = row_places<Config>(params, item, row_result<Config>(params, item, kv_head, 0)).output;
    if (is_final(item)) return {first, 2ll * params.out_token_stride, 2 * Config::v_head_dim};
    const long long vectors = params.kv_heads * Config::group;
    return {first, 4 * (item.slot_stride * vectors) * Config::v_head_dim, 4 * Config::v_head_dim};
  }
  __device__ __forceinline__ unsigned char* bytes(int row) const {
    return first + row / Config::group * token_bytes + row % Config::group * head_bytes;
  }
#endif
};

// Where an item of several parts, of q_count query tokens, keeps from `scratch` on what a row's results gave at a level of
// tile/fold.cuh: as RowResult::vector. Those of the KV head's rows follow one another. The
// kernel alone reads what it writes there.
template <class Config>
__device__ __forceinline__ long long scratch_vector(const AttendParams& params, int q_count, int scratch, int kv_head, int row, int level) {
  const int rows = q_count * Config::group;
  return static_cast<long long>(scratch + level * q_count) * (params.kv_heads * Config::group) + kv_head * rows +
         own_tokens<Config>(q_count).first * Config::group + row;
}

// What a folded row is multiplied by at the end: the learned sink is in a final result.
template <class Config>
__device__ __forceinline__ float folded_row_normaliser(const AttendParams& params, const Item& item, int kv_head, int row, float lse2) {
#if KGEN_SINK_LOGITS
  if (is_final(item)) return folded_normaliser(lse2, pointer<float>(params.sink_logits)[query_head<Config>(kv_head, row)] * log2_e, true);
#endif
  return folded_normaliser(lse2, 0.f, false);
}

// What a row's sum of weights is divided into, the learned sink included in a final result.
template <class Config>
__device__ __forceinline__ float row_normaliser(const AttendParams& params, const Item& item, int head, float maximum, float sum, float scale_log2) {
#if KGEN_SINK_LOGITS
  if (is_final(item)) {
    const float sink = pointer<float>(params.sink_logits)[head] * log2_e;
    return normaliser(sum, sink - maximum * scale_log2, true);
  }
#endif
  return normaliser(sum, 0.f, false);
}

}  // namespace kgen
