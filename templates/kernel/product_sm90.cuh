// product (sm90): how fast wgmma can multiply at all. Every block computes
// rounds * A * B^T from shared memory, a warpgroup 64 rows of it.
#pragma once
#include "../tile/operands.cuh"
#include "../tile/warpgroup.cuh"

namespace kgen {

template <class Config, class Params>
__device__ __forceinline__ void product_sm90(const Params& params) {
  using Tile = Operands<Config>;
  static_assert(Config::threads == Config::rows / 64 * 128, "a warpgroup for each 64 rows");
  static_assert(sizeof(Tile) == Config::shared_bytes, "the plan's shared memory");
  Tile& shared = *reinterpret_cast<Tile*>(ptx::dynamic_shared());
  fill_operand<Config>(shared.a, params.a);
  fill_operand<Config>(shared.b, params.b);
  ptx::fence_async_shared();
  ptx::sync_threads();

  const int group_row = ptx::thread_index() / 128 * 64;
  const uint32_t a = ptx::shared_address(shared.a.bytes) + group_row * shared.a.row_bytes, b = ptx::shared_address(shared.b.bytes);
  Accumulator<1, Config::columns> sums;
  sums.clear();
  for (int round = 0; round < params.rounds; ++round) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::inner / 16; ++k) {
      const int step = k / 4 * shared.a.column_bytes + k % 4 * inner_step;
      ptx::Wgmma<typename Config::Element, Config::columns>::shared(
          reinterpret_cast<float(&)[Config::columns / 2]>(sums.block), ptx::matrix_descriptor(a + step, 0, shared.a.eight_rows_bytes),
          ptx::matrix_descriptor(b + step, 0, shared.b.eight_rows_bytes), true);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();  // the other warpgroup's products go on
    touch(sums);
  }
  store_product<Config>(params.products, sums.block[0], group_row + ptx::warp_index() % 4 * 16, 0);
}

}  // namespace kgen
