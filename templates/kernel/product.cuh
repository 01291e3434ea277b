// product: how fast mma.sync can multiply at all. Every block computes rounds * A * B^T
// from shared memory, a warp 64 rows by 64 columns of it.
#pragma once
#include "../tile/operands.cuh"
#include "../tile/products.cuh"

namespace kgen {

template <class Config, class Params>
__device__ __forceinline__ void product(const Params& params) {
  using Tile = Operands<Config>;
  constexpr int across = Config::columns / 64;
  static_assert(Config::warps == Config::rows / 64 * across, "a warp for each 64 rows by 64 columns");
  static_assert(sizeof(Tile) == Config::shared_bytes, "the plan's shared memory");
  Tile& shared = *reinterpret_cast<Tile*>(ptx::dynamic_shared());
  fill_operand<Config>(shared.a, params.a);
  fill_operand<Config>(shared.b, params.b);
  ptx::sync_threads();

  const int lane = ptx::lane_index(), row = ptx::warp_index() / across * 64, column = ptx::warp_index() % across * 64;
  const uint32_t a_address = ptx::shared_address(shared.a.bytes) + shared.a.byte(row + lane % 16, lane / 16);
  const uint32_t b_address = ptx::shared_address(shared.b.bytes) + shared.b.byte(column + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  Accumulator<4, 64> sums;
  sums.clear();
  for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
    for (int k = 0; k < Config::inner / 16; ++k) {
      uint32_t a[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) ptx::ldmatrix_x4(a[m], shared.a.step(a_address, k) + 16 * m * shared.a.row_bytes);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, shared.b.step(b_address, k) + 16 * n * shared.b.row_bytes);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          ptx::mma_m16n8k16<typename Config::Element>(sums.block[m][2 * n], a[m], b[0], b[1]);
          ptx::mma_m16n8k16<typename Config::Element>(sums.block[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) store_product<Config>(params.products, sums.block[m], row + 16 * m, column);
}

}  // namespace kgen
