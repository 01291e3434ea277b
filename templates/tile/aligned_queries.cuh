// Queries whose rotation for a run of keys at positions in their segment is split in two (sm90).
//
// A row at position p is rotated by p - offset, for a run that begins at `offset`. With p0 the
// position of its item's first token that is a rotation by p - p0, the same for all runs, and
// one by p0 - offset, the same for all rows. The first is done once an item, in fp32: the
// queries are then aligned. The second is done for each run: by the matrix units
// (aligned_products.cuh); or, of 256 dimensions, in pairs of fp16 (aligned_pairs.cuh). There
// shared memory has room for one tile of queries, so that consumers wait for the next, and in the
// time that they have, small products would wait for their large ones.
//
// Shared memory has no room for aligned queries beside the rotated ones. Those for the matrix units are
// in the rotators' registers, and until these have them where they will be rotated to; others are where the
// rows' results will be.
//
// Aligned queries and the run's cosines and sines are fp16, whose roundings are an eighth of the
// last one's, to bf16. To have more of its range above 1, queries are scaled by a power of two,
// Config::query_scale: elements up to 2^19 in magnitude are right, those above 2^-12 as close as
// bf16, and smaller ones within 2^-20.
#pragma once
#include "item.cuh"

namespace kgen {

// Those who rotate: as many threads as a warpgroup has, who meet at a named barrier of their own.
constexpr int aligned_rotator_threads = 128;
__device__ __forceinline__ void rotators_meet() { ptx::named_barrier_sync(5, aligned_rotator_threads); }

// A place of queries that consumers will give back: a barrier for each 64 rows, and the parity to wait for.
struct PlaceInUse {
  unsigned long long* free;  // null: nobody uses it
  int parity;

  template <int Parts>
  __device__ __forceinline__ void wait() const {
#pragma unroll
    for (int part = 0; free != nullptr && part < Parts; ++part) ptx::barrier_wait(ptx::shared_address(free + part), parity);
  }
};

// The eight pairs of a unit, rotated, to place(pair, x, y).
template <class Config, class Place>
__device__ __forceinline__ void align_pairs(const uint4& first, const uint4& second, const Angles& a, Place place) {
  const uint32_t x[4] = {first.x, first.y, first.z, first.w}, y[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = ptx::unpack<typename Config::Element>(x[i]), v = ptx::unpack<typename Config::Element>(y[i]);
    auto rotate = [&](int pair, float x, float y) { place(pair, x * a.cos[pair] - y * a.sin[pair], y * a.cos[pair] + x * a.sin[pair]); };
#if KGEN_INTERLEAVED
    rotate(i, u.x, u.y), rotate(4 + i, v.x, v.y);
#else
    rotate(2 * i, u.x, v.x), rotate(2 * i + 1, u.y, v.y);
#endif
  }
}

}  // namespace kgen
