// The operands of the matrix product that measures a device: a block keeps both in
// shared memory for as long as it runs.
#pragma once
#include "pointer.cuh"
#include "shared_tile.cuh"

namespace kgen {

template <class Config>
struct Operands {
  ColumnTile<Config::rows, Config::inner> a;     // [rows][inner]
  ColumnTile<Config::columns, Config::inner> b;  // [columns][inner], the right side transposed
};

// Fills a tile from row-major elements. All threads of the block.
template <class Config, int Rows>
__device__ __forceinline__ void fill_operand(ColumnTile<Rows, Config::inner>& tile, const void* elements) {
  constexpr int chunks = Config::inner / chunk_elements;
  for (int i = ptx::thread_index(); i < Rows * chunks; i += Config::threads) {
    ptx::store_16(tile.bytes + tile.byte(i / chunks, i % chunks), ptx::load_16(pointer<unsigned char>(elements) + i * chunk_bytes));
  }
}

// The fragments of sixteen rows by 8 * Blocks columns to a block's float32 [rows][columns].
template <class Config, int Blocks>
__device__ __forceinline__ void store_product(void* products, const float (&d)[Blocks][4], int first_row, int first_column) {
  const int lane = ptx::lane_index();
  float* out = static_cast<float*>(products) + (static_cast<long long>(ptx::block_x()) * Config::rows + first_row + lane / 4) * Config::columns +
               first_column + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < Blocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i / 2 * 8 * Config::columns + n * 8 + i % 2] = d[n][i];
}

}  // namespace kgen
