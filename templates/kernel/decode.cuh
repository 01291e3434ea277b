// attend, few rows: decode. One tile of rows is shared by all warps of a block,
// which take the item's tiles of keys in turn. A warp keeps its own copies in
// flight, its own rotated queries and its own softmax, so that no barrier stops
// the stream of loads; the warps' results are merged at the end.
#pragma once
#include "../tile/item.cuh"

namespace kgen {

template <class Config>
struct DecodeWarp {
  SharedTile<Config::rows, Config::head_dim> query;  // rotated
  SharedTile<Config::keys, Config::head_dim> key[Config::stages];
  SharedTile<Config::keys, Config::v_head_dim> value[Config::stages];
};

// What a warp hands over to the merge; it takes the place of the warp's tiles.
template <class Config>
struct DecodeResult {
  float maximum[Config::rows], sum[Config::rows];
  float output[Config::rows][Config::v_head_dim];
};

template <class Config>
union DecodeShared {
  DecodeWarp<Config> warp[Config::warps];
  DecodeResult<Config> result[Config::warps];
};

// Merges the warps' results: one warp a row, Dim / 32 columns a lane.
template <class Config>
__device__ __forceinline__ void merge_warps(const AttendParams& params, const Item& item, int kv_head, int rows,
                                            const DecodeShared<Config>& shared, float scale_log2, int warp, int lane) {
  constexpr int dim = Config::v_head_dim, columns = dim / 32;
  for (int row = warp; row < rows; row += Config::warps) {
    float maximum = -ptx::infinity(), sum = 0.f, output[columns] = {};
#pragma unroll
    for (int w = 0; w < Config::warps; ++w) maximum = ptx::maximum(maximum, shared.result[w].maximum[row]);
#pragma unroll
    for (int w = 0; w < Config::warps; ++w) {
      const DecodeResult<Config>& part = shared.result[w];
      if (part.sum[row] == 0.f) continue;  // this warp saw no key
      const float weight = ptx::exp2_approx((part.maximum[row] - maximum) * scale_log2);
      sum = ptx::multiply_add(part.sum[row], weight, sum);
#pragma unroll
      for (int c = 0; c < columns; ++c) output[c] = ptx::multiply_add(part.output[row][lane * columns + c], weight, output[c]);
    }
    const RowResult r = row_result<Config>(params, item, kv_head, row);
    const float factor = row_normaliser<Config>(params, item, r, maximum, sum, scale_log2);
    if (lane == 0) store_log_sum_exp(params, item, r, log_sum_exp2(maximum, sum, scale_log2));
#pragma unroll
    for (int c = 0; c < columns; c += 2) {
      const float x = output[c] * factor, y = output[c + 1] * factor;
      const int column = lane * columns + c;
      if (item.slot == FINAL) {
        *reinterpret_cast<uint32_t*>(output_row<Config>(params, r) + 2 * column) = ptx::pack<typename Config::Element>(x, y);
      } else {
        *reinterpret_cast<float2*>(static_cast<float*>(params.partial_out) + r.vector * dim + column) = make_float2(x, y);
      }
    }
  }
}

template <class Config>
__device__ __forceinline__ void decode(const AttendParams& params) {
  using Element = typename Config::Element;
  constexpr int keys = Config::keys, stages = Config::stages, warps = Config::warps, m_tiles = Config::rows / 16;

  static_assert(sizeof(DecodeShared<Config>) == Config::shared_bytes, "the plan's shared memory");
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

  int rotated_run = -1;
  for (int stage = 0; tile.exists(); tile = skip(tile, warps), stage = after<stages>(stage)) {
    load_next();  // into the stage that the previous tile has left
    if (needs_rotation(rotated_run, tile.run)) {
      rotate_query<Config, Config::rows, 32>(rows, rope, rotation_base(tile), params.rope_scale, 0, lane, [&](int row, int chunk, uint4 elements) {
        ptx::store_16(mine.query.bytes + tile_byte<Config::head_dim>(row, chunk), elements);
      });
      rotated_run = tile.run;
    }
    ptx::cp_async_wait<stages - 1>();
#if KGEN_ENCODING_RAW
    rotate_keys<Config, keys, 32>(mine.key[stage], rope, tile.offset + tile.begin, lane);
#endif
    ptx::sync_warp();

    Accumulator<m_tiles, keys> scores;
    query_times_keys<Element, Config::head_dim>(scores, mine.query, 0, mine.key[stage], lane);
#if KGEN_SOFT_CAP
    cap_scores<Config>(scores, params.scale);
#endif
    if (needs_mask<Config, keys>(tile, item.q_index)) {
      mask_scores(scores, 0, tile.begin, lane, [&](int row) { return visible_to_row<Config>(params, item, tile, row); });
    }
    softmax.update(scores, output, scale_log2);
    add_weights_times_values<Element>(output, scores, mine.value[stage], lane);
    ptx::sync_warp();  // all lanes have left this stage and the rotated queries
  }

  ptx::cp_async_wait<0>();
  softmax.finish();
  ptx::sync_threads();  // the results take the place of the tiles
  DecodeResult<Config>& result = shared.result[warp];
#pragma unroll
  for (int m = 0; m < m_tiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * m + 8 * h + lane / 4;
      if (lane % 4 == 0) result.maximum[row] = softmax.maximum[m][h], result.sum[row] = softmax.sum[m][h];
#pragma unroll
      for (int n = 0; n < Config::v_head_dim / 8; ++n) {
        *reinterpret_cast<float2*>(&result.output[row][8 * n + 2 * (lane % 4)]) =
            make_float2(output.block[m][n][2 * h], output.block[m][n][2 * h + 1]);
      }
    }
  ptx::sync_threads();
  merge_warps<Config>(params, item, kv_head, rows.count, shared, scale_log2, warp, lane);
}

}  // namespace kgen
