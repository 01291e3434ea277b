// The results of a tile of rows.
#pragma once
#include "item.cuh"

namespace kgen {

// Hands each lane's pairs of adjacent outputs, times their row's factor, of the blocks
// of eight columns from first to first + Blocks to stage(row, block, x, y). The warp's
// staged rows then go to so many bytes behind the beginnings of their results, 16 bytes a
// lane and whole lines at a time.
template <class Config, int Blocks, int MTiles, class Staging, class Stage>
__device__ __forceinline__ void store_staged(const ResultRows<Config>& results, int behind, int count, const Accumulator<MTiles, Config::v_head_dim>& output,
                                             const float (&factor)[MTiles][2], int first, int first_row, int lane, Staging staging, Stage stage) {
  constexpr int chunks = Config::v_head_dim / chunk_elements;
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
        const float(&pair)[4] = output.block[m][first + n];
        stage(first_row + 16 * m + 8 * h + lane / 4, n, pair[2 * h] * factor[m][h], pair[2 * h + 1] * factor[m][h]);
      }
  ptx::sync_warp();
  constexpr int turns = 16 * MTiles * chunks / 32, at_a_time = turns < 8 ? turns : 8;
#pragma unroll 1
  for (int first_turn = 0; first_turn < turns; first_turn += at_a_time) {
    uint4 elements[at_a_time];
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      const int cell = lane + 32 * (first_turn + i);
      elements[i] = ptx::load_16(staging(first_row + cell / chunks, cell % chunks));
    }
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      const int cell = lane + 32 * (first_turn + i), row = first_row + cell / chunks;
      if (row >= count) continue;
      ptx::store_16(results.bytes(row) + behind + cell % chunks * chunk_bytes, elements[i]);
    }
  }
}

// What a warp's rows are multiplied by at the end, and their log-sum-exps, base 2.
template <int MTiles>
struct RowEnds {
  float factor[MTiles][2], lse[MTiles][2];
};

// Hands the lane's rows that exist, with their places in RowEnds, to visit(row, m, h).
template <class Config, int MTiles, class Visit>
__device__ __forceinline__ void for_each_row(const Item& item, int first_row, int lane, Visit visit) {
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * m + 8 * h + lane / 4;
      if (row < own_rows<Config>(item)) visit(row, m, h);
    }
}

// Writes one warp's rows by way of its own rows of the query tile, of which
// staging(row, chunk) is the address; fp32 rows of partial results in two halves, for
// which there is room. Rows that do not exist have any ends.
template <class Config, int MTiles, class Staging>
__device__ __forceinline__ void store_rows(const AttendParams& params, const Item& item, int kv_head,
                                           const Accumulator<MTiles, Config::v_head_dim>& output, const RowEnds<MTiles>& ends,
                                           int first_row, int lane, Staging staging) {
  constexpr int dim = Config::v_head_dim, blocks = dim / 8;
  for_each_row<Config, MTiles>(item, first_row, lane, [&](int row, int m, int h) {
    if (lane % 4 == 0) store_log_sum_exp(params, item, row_result<Config>(params, item, kv_head, row), ends.lse[m][h]);
  });
  const ResultRows<Config> results = ResultRows<Config>::of(params, item, kv_head);
  const int count = own_rows<Config>(item);
  if (is_final(item)) {
    store_staged<Config, blocks>(results, 0, count, output, ends.factor, 0, first_row, lane, staging, [&](int row, int n, float x, float y) {
      *reinterpret_cast<uint32_t*>(staging(row, n) + 4 * (lane % 4)) = ptx::pack<typename Config::Element>(x, y);
    });
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_staged<Config, blocks / 2>(results, half * (dim / 2) * 4, count, output, ends.factor, half * (blocks / 2), first_row, lane, staging,
                                     [&](int row, int n, float x, float y) {
                                       *reinterpret_cast<float2*>(staging(row, 2 * n + lane % 4 / 2) + 8 * (lane % 2)) = make_float2(x, y);
                                     });
    ptx::sync_warp();  // the next half's staging overwrites what other lanes read
  }
}

// The ends of rows whose softmax is finished.
template <class Config, int MTiles>
__device__ __forceinline__ RowEnds<MTiles> row_ends(const AttendParams& params, const Item& item, int kv_head, const Softmax<MTiles>& softmax,
                                                    float scale_log2, int first_row, int lane) {
  RowEnds<MTiles> ends = {};
  for_each_row<Config, MTiles>(item, first_row, lane, [&](int row, int m, int h) {
    const float maximum = softmax.maximum[m][h], sum = softmax.sum[m][h];
    ends.factor[m][h] = row_normaliser<Config>(params, item, row_result<Config>(params, item, kv_head, row), maximum, sum, scale_log2);
    ends.lse[m][h] = log_sum_exp2(maximum, sum, scale_log2);
  });
  return ends;
}

}  // namespace kgen
