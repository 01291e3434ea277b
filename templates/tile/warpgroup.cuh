// Tiles and products of a warpgroup (sm90): 64 rows of queries against a tile of
// keys, both in shared memory as ColumnTiles.
#pragma once
#include "../ptx/sm90.cuh"
#include "products.cuh"
#include "shared_tile.cuh"

namespace kgen {

constexpr int inner_step = 16 * 2;  // bytes, sixteen elements along a row

// Starts scores = query * key^T, for the 64 rows from first_row on.
template <class Element, int Keys, int Dim>
__device__ __forceinline__ void start_query_times_keys(Accumulator<1, Keys>& scores, uint32_t query, int first_row, uint32_t keys) {
  float(&d)[Keys / 2] = reinterpret_cast<float(&)[Keys / 2]>(scores.block);
  using Tile = ColumnTile<Keys, Dim>;  // the query's differs in its number of rows alone
  const uint64_t a = ptx::matrix_descriptor(query + first_row * Tile::row_bytes, 0, Tile::eight_rows_bytes);
  const uint64_t b = ptx::matrix_descriptor(keys, 0, Tile::eight_rows_bytes);
#pragma unroll
  for (int k = 0; k < Dim / 16; ++k) {
    const int step = k / 4 * Tile::column_bytes + k % 4 * inner_step;
    ptx::Wgmma<Element, Keys>::shared(d, ptx::descriptor_behind(a, step), ptx::descriptor_behind(b, step), k > 0);
  }
  ptx::wgmma_commit();
}

// A tile's weights as the A fragments of its second product.
template <int Keys>
struct WeightFragments {
  uint32_t step[Keys / 16][4];
};

// Those of the lane's row h, once its scores are weights.
template <class Element, int Keys>
__device__ __forceinline__ void to_fragments(WeightFragments<Keys>& weights, const Accumulator<1, Keys>& scores, int h) {
#pragma unroll
  for (int k = 0; k < Keys / 16; ++k)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float(&pair)[4] = scores.block[0][2 * k + i];
      weights.step[k][2 * i + h] = ptx::pack<Element>(pair[2 * h], pair[2 * h + 1]);
    }
}

// Starts output += weights * value, by products of so many columns.
template <class Element, int Columns, int Keys, int Dim>
__device__ __forceinline__ void start_weights_times_values(Accumulator<1, Dim>& output, const WeightFragments<Keys>& weights, uint32_t values) {
  float(&d)[Dim / Columns][Columns / 2] = reinterpret_cast<float(&)[Dim / Columns][Columns / 2]>(output.block);
  using Tile = ColumnTile<Keys, Dim>;
  const uint64_t b = ptx::matrix_descriptor(values, Tile::column_bytes, Tile::eight_rows_bytes);
#pragma unroll
  for (int k = 0; k < Keys / 16; ++k)
#pragma unroll
    for (int n = 0; n < Dim / Columns; ++n) {
      const int columns = n * (Columns / column_elements) * Tile::column_bytes;
      ptx::Wgmma<Element, Columns>::registers(d[n], weights.step[k], ptx::descriptor_behind(b, columns + k * 2 * Tile::eight_rows_bytes), true);
    }
  ptx::wgmma_commit();
}

template <int Columns>
__device__ __forceinline__ void touch(Accumulator<1, Columns>& a) {
  ptx::wgmma_touch(reinterpret_cast<float(&)[Columns / 2]>(a.block));
}

}  // namespace kgen
