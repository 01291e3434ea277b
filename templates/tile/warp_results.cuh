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

// Folds what the item's scratch holds of a row onto a part's normalised output and its
// log-sum-exp, base 2, and, but for the last part, keeps what comes out. Each lane reads
// what it wrote itself.
template <class Config>
__device__ __forceinline__ void fold_row(const AttendParams& params, const Item& item, Part part, int kv_head, int row,
                                         float (&output)[Config::v_head_dim / 32], float& lse, int lane) {
  constexpr int dim = Config::v_head_dim, columns = dim / 32;
  auto lse_of = [&](int level) { return static_cast<float*>(params.partial_lse) + scratch_vector<Config>(params, item, kv_head, row, level); };
  auto output_of = [&](int level) { return static_cast<float*>(params.partial_out) + scratch_vector<Config>(params, item, kv_head, row, level) * dim + lane * columns; };
  int level = 0;
  for (const int levels = part.levels(); levels >> level > 0; ++level) {
    if ((levels >> level & 1) == 0) continue;
    float before[columns];
#pragma unroll
    for (int c = 0; c < columns; ++c) before[c] = output_of(level)[c];
    const Fold by = fold_of(ptx::shuffle(lane == 0 ? *lse_of(level) : 0.f, 0), lse);
    lse = by.lse;
#pragma unroll
    for (int c = 0; c < columns; ++c) output[c] = fold(by, before[c], output[c]);
  }
  if (part.last) return;
  if (lane == 0) *lse_of(level) = lse;
#pragma unroll
  for (int c = 0; c < columns; ++c) output_of(level)[c] = output[c];
}

// Merges the results that Warps warps have of a part: row by row, from first_row on by
// step, Dim / 32 columns a lane. Of an item of several parts, one and the same warp takes
// a row in all of them.
template <class Config, int Warps>
__device__ __forceinline__ void merge_warps(const AttendParams& params, const Item& item, Part part, int kv_head, int rows,
                                            const WarpResult<Config>* results, float scale_log2, int first_row, int step, int lane) {
  constexpr int dim = Config::v_head_dim, columns = dim / 32;
  for (int row = first_row; row < rows; row += step) {
    float maximum = -ptx::infinity(), sum = 0.f, output[columns] = {};
#pragma unroll
    for (int w = 0; w < Warps; ++w) maximum = ptx::maximum(maximum, results[w].maximum[row]);
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const WarpResult<Config>& result = results[w];
      if (result.sum[row] == 0.f) continue;  // this warp saw no key
      const float weight = ptx::exp2_approx((result.maximum[row] - maximum) * scale_log2);
      sum = ptx::multiply_add(result.sum[row], weight, sum);
#pragma unroll
      for (int c = 0; c < columns; ++c) output[c] = ptx::multiply_add(result.output[row][lane * columns + c], weight, output[c]);
    }
    const RowResult r = row_result<Config>(params, item, kv_head, row);
    float lse = log_sum_exp2(maximum, sum, scale_log2);
    const float factor = part.alone() ? row_normaliser<Config>(params, item, r, maximum, sum, scale_log2) : normaliser(sum, 0.f, false);
#pragma unroll
    for (int c = 0; c < columns; ++c) output[c] *= factor;
    if (!part.alone()) {
      fold_row<Config>(params, item, part, kv_head, row, output, lse, lane);
      if (!part.last) continue;
      const float folded_factor = folded_row_normaliser<Config>(params, item, kv_head, row, lse);
#pragma unroll
      for (int c = 0; c < columns; ++c) output[c] *= folded_factor;
    }
    if (lane == 0) store_log_sum_exp(params, item, r, lse);
#pragma unroll
    for (int c = 0; c < columns; c += 2) {
      const int column = lane * columns + c;
      if (is_final(item)) {
        *reinterpret_cast<uint32_t*>(output_row<Config>(params, r) + 2 * column) = ptx::pack<typename Config::Element>(output[c], output[c + 1]);
      } else {
        *reinterpret_cast<float2*>(static_cast<float*>(params.partial_out) + r.vector * dim + column) = make_float2(output[c], output[c + 1]);
      }
    }
  }
}

}  // namespace kgen
