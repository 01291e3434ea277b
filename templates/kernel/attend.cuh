// attend, many rows: prefill, extend and shared decode. One block holds a tile of query rows
// (query tokens x heads of one KV head) and walks its item's keys; each warp owns
// rows / warps of the rows.
#pragma once
#include "../tile/item.cuh"
#include "../tile/store.cuh"

namespace kgen {

template <class Config>
struct AttendShared {
  SharedTile<Config::rows, Config::head_dim> query;  // rotated; at the end, the outputs
  SharedTile<Config::keys, Config::head_dim> key[Config::stages];
  SharedTile<Config::keys, Config::v_head_dim> value[Config::stages];
  KeyTile tile[Config::stages + 1];  // those of the tiles in flight and of the one at work
  // Each thread's softmax sums between two tiles. During the products their
  // registers are worth more to fragments loaded ahead.
  float sum[2 * Config::rows / Config::warps / 16][Config::threads];
#if KGEN_WINDOW
  int last_position;  // of the item's query tokens
#endif
};

template <class Config>
__device__ __forceinline__ void attend(const AttendParams& params) {
  using Element = typename Config::Element;
  constexpr int rows_per_warp = Config::rows / Config::warps, m_tiles = rows_per_warp / 16;
  constexpr int threads = Config::threads, keys = Config::keys, stages = Config::stages;
  static_assert(Config::v_head_dim <= Config::head_dim, "the outputs are staged in the query tile");
  static_assert(sizeof(AttendShared<Config>) == Config::shared_bytes, "the plan's shared memory");

  ptx::wait_for_previous_kernel();
  AttendShared<Config>& shared = *reinterpret_cast<AttendShared<Config>*>(ptx::dynamic_shared());
  const int thread = ptx::thread_index(), lane = ptx::lane_index(), first_row = ptx::warp_index() * rows_per_warp;
  const int kv_head = ptx::block_y();
  // A reference, not a copy: the accumulators need the registers.
  const Item& item = pointer<Item>(params.items)[ptx::block_x()];
  if (item.q_count == 0) return;
  const float* rope = pointer<float>(params.rope);
  const float scale_log2 = score_exponent<Config>(params);

  // Thread 0 finds the tiles, in shared memory: the accumulators need everybody's
  // registers. Tile t is the slot t % (stages + 1); its copies are in stage t % stages.
  constexpr int slots = stages + 1;
  if (thread == 0) {
    shared.tile[0] = first_tile(params, item.run_begin, item.run_end);
#pragma unroll
    for (int s = 1; s < stages; ++s) shared.tile[s] = tile_after<keys>(params, shared.tile[s - 1], item.run_end);
  }
  if (first_row == 0) keep_last_position<Config>(params, item, lane, shared);
  ptx::sync_threads();
  auto load_key = [&](int slot, int stage) {
    const KeyTile& tile = shared.tile[slot];
    if (tile.exists()) load_keys<Config, keys, threads>(shared.key[stage], paged_keys<Config>(params, tile.page, kv_head), tile.begin, tile.end, thread);
    ptx::cp_async_commit();
  };
  auto load_value = [&](int slot, int stage) {
    const KeyTile& tile = shared.tile[slot];
    if (tile.exists()) load_tile<Config, Config::v_head_dim, keys, threads>(shared.value[stage], paged_values<Config>(params, tile.page, kv_head), tile.begin, tile.end, thread);
    ptx::cp_async_commit();
  };

  // Groups of copies alternate: key 0, value 0, key 1, value 1, ... At any wait,
  // the 2 * (stages - 1) newest may still be under way.
  constexpr int pending = 2 * (stages - 1);
#pragma unroll
  for (int s = 0; s < stages; ++s) {
    load_key(s, s);
    if (s < stages - 1) load_value(s, s);
  }

  Accumulator<m_tiles, Config::v_head_dim> output;
  Softmax<m_tiles> softmax;
  output.clear();
  softmax.clear();
  softmax.store_sums(shared.sum, thread);

  int rotated_base = no_base;
  for (int slot = 0, stage = 0; shared.tile[slot].exists(); slot = after<slots>(slot), stage = after<stages>(stage)) {
    const KeyTile& tile = shared.tile[slot];
    const int last_slot = before<slots>(slot);               // of tile t + stages
    const int value_slot = before<slots>(last_slot);         // of tile t + stages - 1
    const int value_stage = before<stages>(stage);

    ptx::cp_async_wait<pending>();  // this tile's keys
#if KGEN_ENCODING_RAW
    rotate_keys<Config, keys, threads>(shared.key[stage], rope, first_key_position(tile), tile.end - tile.begin, thread);
#endif
    ptx::sync_threads();  // all threads' keys are there; all warps have left the previous tile
    load_value(value_slot, value_stage);
    if (thread == 0) shared.tile[last_slot] = tile_after<keys>(params, shared.tile[value_slot], item.run_end);

    if (needs_rotation(rotated_base, tile)) {
      rotate_query<Config, threads, 4>(query_rows<Config>(params, item, kv_head), rope, rotation_base(tile), query_factor<Config>(params), thread, shared.query);
      ptx::sync_threads();
      rotated_base = rotation_base(tile);
    }

    Accumulator<m_tiles, keys> scores;
    query_times_keys<Element, Config::head_dim>(scores, shared.query, first_row, shared.key[stage], lane);

    ptx::cp_async_wait<pending>();  // this tile's values
    ptx::sync_threads();            // all threads' values are there; all warps have left these keys
    load_key(last_slot, stage);

#if KGEN_SOFT_CAP
    cap_scores<Config>(scores, product_exponent<Config>(params));
#endif
    if (needs_mask<Config, keys>(tile, item.q_index, kept_last_position(shared))) {
      mask_scores(scores, first_row, tile.begin, lane, [&](int row) { return visible_to_row<Config>(params, item, tile, row); });
    }
    softmax.load_sums(shared.sum, thread);
    softmax.update(scores, output, scale_log2);
    softmax.store_sums(shared.sum, thread);
    add_weights_times_values<Element>(output, scores, shared.value[stage], lane);
  }

  ptx::cp_async_wait<0>();
  softmax.load_sums(shared.sum, thread);
  softmax.finish();
  // Its last reads of its own query rows are behind the warp; no other warp reads them.
  store_rows<Config, m_tiles>(warp_rows<Config, m_tiles>(params, item, kv_head, first_row, lane), output,
                              row_ends<Config>(params, item, kv_head, softmax, scale_log2, first_row, lane), lane, shared.query);
}

}  // namespace kgen
