// read: how fast device memory can be read at all. Every thread adds up the 32-bit
// words of its share, many wide loads in flight at a time.
#pragma once
#include "../tile/pointer.cuh"

namespace kgen {

template <class Config, class Params>
__device__ __forceinline__ void read(const Params& params) {
  constexpr int step = Config::threads * Config::loads;  // 16-byte words of a block's turn
  const uint4* words = pointer<uint4>(params.words) + ptx::thread_index();
  uint32_t sum = 0;
  for (int turn = ptx::block_x(); turn < params.turns; turn += ptx::grid_x()) {
    const uint4* from = words + static_cast<long long>(turn) * step;
    uint4 loaded[Config::loads];
#pragma unroll
    for (int i = 0; i < Config::loads; ++i) loaded[i] = ptx::load_16(from + i * Config::threads);
#pragma unroll
    for (int i = 0; i < Config::loads; ++i) sum += loaded[i].x + loaded[i].y + loaded[i].z + loaded[i].w;
  }
  static_cast<uint32_t*>(params.sums)[ptx::block_x() * Config::threads + ptx::thread_index()] = sum;
}

}  // namespace kgen
