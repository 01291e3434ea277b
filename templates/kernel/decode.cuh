// attend, few rows: decode. One tile of rows is shared by all warps of a block,
// which take the item's tiles of keys in turn. A warp keeps its own copies in
// flight, its own rotated queries and its own softmax, so that no barrier stops
// the stream of loads; the warps' results are merged at the end.
#pragma once
#include "../tile/item.cuh"
#include "../tile/warp_results.cuh"

namespace kgen {

template <class Config>
struct DecodeWarp {
  SharedTile<Config::rows, Config::head_dim> query;  // rotated
  SharedTile<Config::keys, Config::head_dim> key[Config::stages];
  SharedTile<Config::keys, Config::v_head_dim> value[Config::stages];
};

template <class Config>
union DecodeShared {
  DecodeWarp<Config> warp[Config::warps];
  WarpResult<Config> result[Config::warps];
};

template <class Config>
__device__ __forceinline__ void decode(const AttendParams& params) {
  using Element = typename Config::Element;
  constexpr int keys = Config::keys, stages = Config::stages, warps = Config::warps, m_tiles = Config::rows / 16;

  static_assert(sizeof(DecodeShared<Config>) == Config::shared_bytes, "the plan's shared memory");
  ptx::wait_for_previous_kernel();
  DecodeShared<Config>& shared = *reinterpret_cast<DecodeShared<Config>*>(ptx::dynamic_shared());
  const int lane = ptx::lane_index(), warp = ptx::warp_index();
  const int kv_head = ptx::block_y();
  const Item& item = pointer<Item>(params.items)[ptx::block_x()];
  if (item.q_count == 0) return;
  const QueryRows<Config> rows = query_rows<Config>(params, item, kv_head);
  const float* rope = pointer<float>(params.rope);
  const float scale_log2 = score_exponent<Config>(params);
  DecodeWarp<Config>& mine = shared.warp[warp];

  // A warp's tiles are every warps-th of the item's, from its own number on.
  auto skip = [&](KeyTile tile, int tiles) {
    for (int i = 0; i < tiles; ++i) tile = tile_after<keys>(params, tile, item.run_end);
    return tile;
  };
  KeyTile tile = skip(first_tile(params, item.run_begin, item.run_end), warp), next = tile;
  int next_stage = 0;
  auto load_next = [&]() {
    if (next.exists()) {
      load_keys<Config, keys, 32>(mine.key[next_stage], paged_keys<Config>(params, next.page, kv_head), next.begin, next.end, lane);
      load_tile<Config, Config::v_head_dim, keys, 32>(mine.value[next_stage], paged_values<Config>(params, next.page, kv_head), next.begin, next.end, lane);
      next = skip(next, warps);
      next_stage = after<stages>(next_stage);
    }
    ptx::cp_async_commit();
  };
#pragma unroll
  for (int s = 0; s < stages - 1; ++s) load_next();

  Accumulator<m_tiles, Config::v_head_dim> output;
  Softmax<m_tiles> softmax;
  output.clear();
  softmax.clear();

  int rotated_base = no_base;
  for (int stage = 0; tile.exists(); tile = skip(tile, warps), stage = after<stages>(stage)) {
    load_next();  // into the stage that the previous tile has left
    if (needs_rotation(rotated_base, tile)) {
      rotate_query<Config, 32, 4>(rows, rope, rotation_base(tile), query_factor<Config>(params), lane, mine.query);
      rotated_base = rotation_base(tile);
    }
    ptx::cp_async_wait<stages - 1>();
#if KGEN_ENCODING_RAW
    rotate_keys<Config, keys, 32>(mine.key[stage], rope, first_key_position(tile), tile.end - tile.begin, lane);
#endif
    ptx::sync_warp();

    Accumulator<m_tiles, keys> scores;
    query_times_keys<Element, Config::head_dim>(scores, mine.query, 0, mine.key[stage], lane);
#if KGEN_SOFT_CAP
    cap_scores<Config>(scores, product_exponent<Config>(params));
#endif
    if (needs_mask<Config, keys>(tile, item.q_index, any_position)) {
      mask_scores(scores, 0, tile.begin, lane, [&](int row) { return visible_to_row<Config>(params, item, tile, row); });
    }
    softmax.update(scores, output, scale_log2);
    add_weights_times_values<Element>(output, scores, mine.value[stage], lane);
    ptx::sync_warp();  // all lanes have left this stage and the rotated queries
  }

  ptx::cp_async_wait<0>();
  softmax.finish();
  ptx::sync_threads();  // the results take the place of the tiles
  store_result<Config>(shared.result[warp], output, softmax, rows.count, lane);
  ptx::sync_threads();
  merge_warps<Config, warps>(params, item, {}, {}, kv_head, rows.count, shared.result, scale_log2, warp, warps, lane);
}

}  // namespace kgen
