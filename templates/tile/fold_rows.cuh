// A warp's rows of an item of several parts (sm90): results go from part to part by way of
// the item's scratch, which a part's keys leave in the L2 cache. Each lane reads what it
// wrote itself.
#pragma once
#include "store.cuh"

namespace kgen {

// Where a lane's pairs of eight rows are in scratch: those of one row in two blocks of eight
// columns are 16 bytes, and the lanes' follow one another, so that an access of the warp is of
// whole lines. (By rows it is of half lines: 1 percent longer in all, H200, extend of 64 tokens for
// 8 or 16 sequences.)
template <class Config>
struct ScratchRows {
  float4* first;
  int step;  // from two blocks of columns to the next two

  __device__ __forceinline__ static ScratchRows of(const AttendParams& params, int q_count, int slot, int kv_head, int first_row, int level, int lane) {
    const int left = own_rows<Config>(q_count) - first_row;
    float* scratch = static_cast<float*>(params.partial_out) + scratch_vector<Config>(params, q_count, slot, kv_head, first_row, level) * Config::v_head_dim;
    return {reinterpret_cast<float4*>(scratch) + lane, 4 * (left < 8 ? left : 8)};
  }
  __device__ __forceinline__ float4& operator[](int i) const { return first[i * step]; }
};

// Takes a part's rows, of a softmax that is not finished, and folds what the levels below
// hold onto them. Of a part that is not the last the level above keeps the result; of the
// last it is in output, and returned are its ends.
template <class Config>
__device__ __forceinline__ RowEnds<1> fold_rows(const AttendParams& params, const Item& item, int kv_head, Part part,
                                                Accumulator<1, Config::v_head_dim>& output, Softmax<1>& softmax, float scale_log2, int first_row, int lane) {
  constexpr int blocks = Config::v_head_dim / 8;
  // Read once: each read of these comes from the L2 cache, and what is found by it waits. (By ptx::here what follows from them is found
  // anew at each use, and is not in registers that there are not.)
  const int q_count = item.q_count, slot = item.scratch;
  softmax.finish();
  RowEnds<1> ends = {};
  auto row_of = [&](int h) { return first_row + 8 * h + lane / 4; };
  auto exists = [&](int h) { return row_of(h) < own_rows<Config>(ptx::here(q_count)); };
  auto lse_of = [&](int h, int level) { return static_cast<float*>(params.partial_lse) + scratch_vector<Config>(params, ptx::here(q_count), ptx::here(slot), kv_head, row_of(h), level); };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float factor = normaliser(softmax.sum[0][h], 0.f, false);
    ends.lse[0][h] = log_sum_exp2(softmax.maximum[0][h], softmax.sum[0][h], scale_log2);
#pragma unroll
    for (int n = 0; n < blocks; ++n) output.block[0][n][2 * h] *= factor, output.block[0][n][2 * h + 1] *= factor;
  }
  const int above = for_each_level(part, [&](int level) {
    float before[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (exists(h) && lane % 4 == 0) before[h] = *lse_of(h, level);
    }
    float4 kept[2][blocks / 2] = {};
    auto load = [&](int h) {
      const auto rows = ScratchRows<Config>::of(params, ptx::here(q_count), ptx::here(slot), kv_head, first_row + 8 * h, level, lane);
#pragma unroll
      for (int i = 0; i < blocks / 2; ++i) kept[h][i] = rows[i];
    };
    auto fold_onto = [&](int h, const Fold& by) {
#pragma unroll
      for (int i = 0; i < blocks / 2; ++i) {
        const float4& k = kept[h][i];
        float(&left)[4] = output.block[0][2 * i], (&right)[4] = output.block[0][2 * i + 1];
        left[2 * h] = fold(by, k.x, left[2 * h]), left[2 * h + 1] = fold(by, k.y, left[2 * h + 1]);
        right[2 * h] = fold(by, k.z, right[2 * h]), right[2 * h + 1] = fold(by, k.w, right[2 * h + 1]);
      }
    };
    // Both rows are on their way while their log-sum-exps are. (Of 256 dimensions there are registers for one row's, if
    // nothing is folded where there is none.)
    constexpr bool both = blocks <= 16;
#pragma unroll
    for (int h = 0; both && h < 2; ++h) {
      if (exists(h)) load(h);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Fold by = fold_of(ptx::shuffle(before[h], lane & ~3), ends.lse[0][h]);
      ends.lse[0][h] = by.lse;
      if (!both && !exists(h)) continue;
      if (!both) load(h);
      fold_onto(h, by);
    }
  });
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!exists(h)) continue;
    if (part.last) {
      ends.factor[0][h] = folded_row_normaliser<Config>(params, item, kv_head, row_of(h), ends.lse[0][h]);
      continue;
    }
    if (lane % 4 == 0) *lse_of(h, above) = ends.lse[0][h];
    const auto rows = ScratchRows<Config>::of(params, ptx::here(q_count), ptx::here(slot), kv_head, first_row + 8 * h, above, lane);
#pragma unroll
    for (int i = 0; i < blocks / 2; ++i) {
      const float(&left)[4] = output.block[0][2 * i], (&right)[4] = output.block[0][2 * i + 1];
      rows[i] = make_float4(left[2 * h], left[2 * h + 1], right[2 * h], right[2 * h + 1]);
    }
  }
  return ends;
}

}  // namespace kgen
