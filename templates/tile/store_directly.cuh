// The results of a tile of rows, where there is no shared memory to gather them.
#pragma once
#include "store.cuh"

namespace kgen {

// Writes one warp's rows from registers, with no need of shared memory: four lanes write a sector of 32 bytes of a row at a time. Of
// final results, of which a lane has 4 bytes of each block of eight columns, lanes side by side exchange every other block's,
// so that the even one has 8 bytes of the one and the odd one 8 of the other.
template <class Config>
__device__ __forceinline__ void store_rows_directly(const WarpRows<1>& rows, const Accumulator<1, Config::v_head_dim>& output, const RowEnds<1>& ends, int lane) {
  constexpr int blocks = Config::v_head_dim / 8;
  lane &= 31;  // see warp_rows
  store_log_sum_exps(rows, ends, lane);
  const int odd = lane % 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = rows.first + 8 * h + lane / 4;
    const bool exists = row < rows.count;
    unsigned char* const place = rows.output(row);
    const float factor = ends.factor[0][h];
    if (rows.final) {
      unsigned char* const to = place + odd * chunk_bytes + lane % 4 / 2 * 8;
#pragma unroll
      for (int n = 0; n < blocks; n += 2) {
        auto packed = [&](int n) {
          const float(&pair)[4] = output.block[0][n];
          return ptx::pack<typename Config::Element>(pair[2 * h] * factor, pair[2 * h + 1] * factor);
        };
        const uint32_t even_block = packed(n), odd_block = packed(n + 1);
        const uint32_t others = ptx::shuffle(static_cast<int>(odd ? even_block : odd_block), lane ^ 1);
        if (exists) *reinterpret_cast<uint2*>(to + n * chunk_bytes) = odd ? make_uint2(others, odd_block) : make_uint2(even_block, others);
      }
    } else {
#pragma unroll
      for (int n = 0; n < blocks; ++n) {
        const float(&pair)[4] = output.block[0][n];
        if (exists) *reinterpret_cast<float2*>(place + n * 32 + lane % 4 * 8) = make_float2(pair[2 * h] * factor, pair[2 * h + 1] * factor);
      }
    }
  }
}

}  // namespace kgen
