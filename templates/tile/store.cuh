// The results of a tile of rows.
#pragma once
#include "item.cuh"

namespace kgen {

// Writes one warp's rows. Final rows go through the warp's own rows of the query
// tile, of which staging(row, chunk) is the address, to be written 16 bytes a lane;
// partial rows are fp32 and fill whole sectors as they are.
template <class Config, int MTiles, class Staging>
__device__ __forceinline__ void store_rows(const AttendParams& params, const Item& item, int kv_head,
                                           const Accumulator<MTiles, Config::v_head_dim>& output, const Softmax<MTiles>& softmax,
                                           float scale_log2, int first_row, int lane, Staging staging) {
  const int rows = item.q_count * Config::group;
  constexpr int dim = Config::v_head_dim, chunks = dim / chunk_elements;
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * m + 8 * h + lane / 4;
      if (row >= rows) continue;
      const RowResult r = row_result<Config>(params, item, kv_head, row);
      const float sum = softmax.sum[m][h], maximum = softmax.maximum[m][h];
      const float factor = row_normaliser<Config>(params, item, r, maximum, sum, scale_log2);
      if (lane % 4 == 0) store_log_sum_exp(params, item, r, log_sum_exp2(maximum, sum, scale_log2));
#pragma unroll
      for (int n = 0; n < dim / 8; ++n) {
        const float x = output.block[m][n][2 * h] * factor, y = output.block[m][n][2 * h + 1] * factor;
        if (item.slot == FINAL) {
          *reinterpret_cast<uint32_t*>(staging(row, n) + 4 * (lane % 4)) = ptx::pack<typename Config::Element>(x, y);
        } else {
          *reinterpret_cast<float2*>(static_cast<float*>(params.partial_out) + r.vector * dim + 8 * n + 2 * (lane % 4)) = make_float2(x, y);
        }
      }
    }
  if (item.slot != FINAL) return;
  ptx::sync_warp();
  for (int i = lane; i < 16 * MTiles * chunks; i += 32) {
    const int row = first_row + i / chunks, chunk = i % chunks;
    if (row >= rows) break;
    ptx::store_16(output_row<Config>(params, row_result<Config>(params, item, kv_head, row)) + chunk * chunk_bytes,
                  ptx::load_16(staging(row, chunk)));
  }
}

}  // namespace kgen
