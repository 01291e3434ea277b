// The two matrix products of attention, one warp's share: MTiles blocks of 16
// rows against a tile of Keys keys.
//
// Fragments follow mma.m16n8k16: in a 16x8 accumulator, lane 4g+t holds
// columns 2t and 2t+1 of row g (elements 0, 1) and of row g+8 (elements 2, 3).
#pragma once
#include "shared_tile.cuh"

namespace kgen {

template <int MTiles, int Columns>
struct Accumulator {
  float block[MTiles][Columns / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int n = 0; n < Columns / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) block[m][n][i] = 0.f;
  }

  // Scales the lane's row g + 8h of block m.
  __device__ __forceinline__ void scale_row(int m, int h, float factor) {
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) block[m][n][2 * h] *= factor, block[m][n][2 * h + 1] *= factor;
  }
};

// scores = query * key^T. The warp's rows start at `first_row` of the query tile.
// Query and Key are the tiles' types, which say where a chunk lies. Unroll: how many of the
// steps of 16 along Dim are under way at a time, at the most.
template <class Element, int Dim, int Unroll = Dim / 16, class Query, class Key, int MTiles, int Keys>
__device__ __forceinline__ void query_times_keys(Accumulator<MTiles, Keys>& scores, const Query& query, int first_row, const Key& keys, int lane) {
  scores.clear();
  // ldmatrix: lanes 0-7, 8-15, 16-23, 24-31 address the rows of four 8x8 blocks.
  // Sixteen rows further, the swizzle is the same.
  const uint32_t query_address = ptx::shared_address(query.bytes) + Query::byte(first_row + lane % 16, lane / 16);
  const uint32_t key_address = ptx::shared_address(keys.bytes) + Key::byte(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll Unroll
  for (int k = 0; k < Dim / 16; ++k) {
    uint32_t a[MTiles][4];
#pragma unroll
    for (int m = 0; m < MTiles; ++m) ptx::ldmatrix_x4(a[m], Query::step(query_address, k) + 16 * m * Query::row_bytes);
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, Key::step(key_address, k) + 16 * n * Key::row_bytes);
#pragma unroll
      for (int m = 0; m < MTiles; ++m) {
        ptx::mma_m16n8k16<Element>(scores.block[m][2 * n], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(scores.block[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// output += weights * value. An accumulator's layout is that of two halves of
// an A fragment, so the weights go from one product to the next in registers.
template <class Element, class Value, int MTiles, int Keys, int Dim>
__device__ __forceinline__ void add_weights_times_values(Accumulator<MTiles, Dim>& output, const Accumulator<MTiles, Keys>& weights,
                                                         const Value& values, int lane) {
  const uint32_t value_address = ptx::shared_address(values.bytes) + Value::byte(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < Keys / 16; ++k) {
    uint32_t a[MTiles][4];
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
      const float(&left)[4] = weights.block[m][2 * k], (&right)[4] = weights.block[m][2 * k + 1];
      a[m][0] = ptx::pack<Element>(left[0], left[1]);
      a[m][1] = ptx::pack<Element>(left[2], left[3]);
      a[m][2] = ptx::pack<Element>(right[0], right[1]);
      a[m][3] = ptx::pack<Element>(right[2], right[3]);
    }
#pragma unroll
    for (int n = 0; n < Dim / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, Value::step(value_address, n) + 16 * k * Value::row_bytes);
#pragma unroll
      for (int m = 0; m < MTiles; ++m) {
        ptx::mma_m16n8k16<Element>(output.block[m][2 * n], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(output.block[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace kgen
