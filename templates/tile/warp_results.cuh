// The end of an item whose keys the warps of a block have shared out: each warp has
// all rows, of its own keys.
#pragma once
#include "item.cuh"

namespace kgen {

// What a warp hands over to the merge.
template <class Config>
struct WarpResult {
  static constexpr int pad = 8;  // without it the eight rows that a warp stores at a time would meet in the same banks
  float maximum[Config::rows], sum[Config::rows];
  float output[Config::rows][Config::v_head_dim + pad];
};

// All lanes of the warp; softmax is finished. Of the rows, the first `rows` exist.
template <class Config>
__device__ __forceinline__ void store_result(WarpResult<Config>& result, const Accumulator<Config::rows / 16, Config::v_head_dim>& output,
                                             const Softmax<Config::rows / 16>& softmax, int rows, int lane) {
#pragma unroll
  for (int m = 0; m < Config::rows / 16; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * m + 8 * h + lane / 4;
      if (row >= rows) continue;
      if (lane % 4 == 0) result.maximum[row] = softmax.maximum[m][h], result.sum[row] = softmax.sum[m][h];
#pragma unroll
      for (int n = 0; n < Config::v_head_dim / 8; ++n) {
        *reinterpret_cast<float2*>(&result.output[row][8 * n + 2 * (lane % 4)]) =
            make_float2(output.block[m][n][2 * h], output.block[m][n][2 * h + 1]);
      }
    }
}

// A warp of merge_warps has four rows at a time. Of its row, a lane has columns
// 32 i + 4 (lane % row_lanes) and the three behind it.
constexpr int merged_rows = 4, row_lanes = 32 / merged_rows;
template <class Config>
struct MergedRow {
  static constexpr int chunks = Config::v_head_dim / (4 * row_lanes);
  float4 chunk[chunks];

  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < chunks; ++i) chunk[i].x *= factor, chunk[i].y *= factor, chunk[i].z *= factor, chunk[i].w *= factor;
  }
};

__device__ __forceinline__ float4 multiply_add(float4 x, float factor, float4 y) {
  return make_float4(ptx::multiply_add(x.x, factor, y.x), ptx::multiply_add(x.y, factor, y.y), ptx::multiply_add(x.z, factor, y.z), ptx::multiply_add(x.w, factor, y.w));
}

// Room in shared memory for what the lowest levels of an item's parts keep. A result that
// went to the item's scratch would in a large step be written to memory before its turn,
// amid all the reads of keys.
struct KeptResults {
  float* memory;  // rows of all levels, one level's behind the other's; behind them log-sum-exps alike
  int levels;
};
template <class Config>
constexpr int kept_floats = Config::kept_levels * Config::rows * (Config::v_head_dim + 1);

// Folds what earlier parts of an item have kept of a row onto a part's normalised output
// and its log-sum-exp, base 2, and, but for the last part, keeps what comes out. Each lane
// reads what it wrote itself.
template <class Config>
__device__ __forceinline__ void fold_row(const AttendParams& params, const Item& item, Part part, const KeptResults& kept, int kv_head, int row, bool exists,
                                         MergedRow<Config>& output, float& lse, int lane) {
  constexpr int chunks = MergedRow<Config>::chunks, rows = Config::rows, dim = Config::v_head_dim;
  auto lse_of = [&](int level) {
    if (level < kept.levels) return kept.memory + kept.levels * rows * dim + level * rows + row;
    return static_cast<float*>(params.partial_lse) + scratch_vector<Config>(params, item.q_count, item.scratch, kv_head, row, level);
  };
  auto output_of = [&](int level) {
    float* vector = level < kept.levels ? kept.memory + (level * rows + row) * dim
                                        : static_cast<float*>(params.partial_out) + scratch_vector<Config>(params, item.q_count, item.scratch, kv_head, row, level) * dim;
    return reinterpret_cast<float4*>(vector) + lane % row_lanes;
  };
  const int above = for_each_level(part, [&](int level) {
    MergedRow<Config> before;
#pragma unroll
    for (int i = 0; i < chunks; ++i) before.chunk[i] = output_of(level)[row_lanes * i];
    const Fold by = fold_of(ptx::shuffle(lane % row_lanes == 0 ? *lse_of(level) : 0.f, lane / row_lanes * row_lanes), lse);
    lse = by.lse;
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      float4 &b = before.chunk[i], &a = output.chunk[i];
      a = make_float4(fold(by, b.x, a.x), fold(by, b.y, a.y), fold(by, b.z, a.z), fold(by, b.w, a.w));
    }
  });
  if (part.last || !exists) return;
  if (lane % row_lanes == 0) *lse_of(above) = lse;
#pragma unroll
  for (int i = 0; i < chunks; ++i) output_of(above)[row_lanes * i] = output.chunk[i];
}

// Merges the results that Warps warps have of a part: four rows at a time, of those the
// first_fours-th, and so on by step. Of an item of several parts, one and the same warp takes
// a row in all of them.
template <class Config, int Warps>
__device__ __forceinline__ void merge_warps(const AttendParams& params, const Item& item, Part part, const KeptResults& kept, int kv_head, int rows,
                                            const WarpResult<Config>* results, float scale_log2, int first_fours, int step, int lane) {
  constexpr int chunks = MergedRow<Config>::chunks;
  for (int first = merged_rows * first_fours; first < rows; first += merged_rows * step) {
    const bool exists = first + lane / row_lanes < rows;
    const int row = exists ? first + lane / row_lanes : first;
    float maximum = -ptx::infinity(), sum = 0.f;
    MergedRow<Config> output = {};
#pragma unroll
    for (int w = 0; w < Warps; ++w) maximum = ptx::maximum(maximum, results[w].maximum[row]);
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const WarpResult<Config>& result = results[w];
      if (result.sum[row] == 0.f) continue;  // this warp saw no key
      const float weight = ptx::exp2_approx((result.maximum[row] - maximum) * scale_log2);
      sum = ptx::multiply_add(result.sum[row], weight, sum);
#pragma unroll
      for (int i = 0; i < chunks; ++i) {
        output.chunk[i] = multiply_add(*reinterpret_cast<const float4*>(&result.output[row][4 * (row_lanes * i + lane % row_lanes)]), weight, output.chunk[i]);
      }
    }
    const RowResult r = row_result<Config>(params, item, kv_head, row);
    float lse = log_sum_exp2(maximum, sum, scale_log2);
    output.scale(part.alone() ? row_normaliser<Config>(params, item, r.head, maximum, sum, scale_log2) : normaliser(sum, 0.f, false));
    if (!part.alone()) {
      fold_row<Config>(params, item, part, kept, kv_head, row, exists, output, lse, lane);
      if (!part.last) continue;
      output.scale(folded_row_normaliser<Config>(params, item, kv_head, row, lse));
    }
    if (!exists) continue;
    const RowPlaces to = row_places<Config>(params, item, r);
    if (lane % row_lanes == 0 && to.lse != nullptr) *to.lse = stored_log_sum_exp(is_final(item), lse);
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      const int column = 4 * (row_lanes * i + lane % row_lanes);
      const float4& x = output.chunk[i];
      if (is_final(item)) {
        using Element = typename Config::Element;
        *reinterpret_cast<uint2*>(to.output + 2 * column) = make_uint2(ptx::pack<Element>(x.x, x.y), ptx::pack<Element>(x.z, x.w));
      } else {
        *reinterpret_cast<float4*>(to.output + 4 * column) = x;
      }
    }
  }
}

}  // namespace kgen
