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
// Shared memory has no room for aligned queries. They are where the rows' results will be, and those
// for the matrix units, once an item has them, in the rotators' registers.
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

// The rows of an item's aligned queries, for one KV head. A row has head_dim fp16 elements, in an
// order of their own.
template <class Config>
struct AlignedPlaces {
  static_assert(Config::v_head_dim >= Config::head_dim, "results have room for queries");
  static constexpr float scale = Config::query_scale;
  ResultRows<Config> rows;
  int count;  // rows that exist

  __device__ __forceinline__ AlignedPlaces(const AttendParams& params, const Item& item, int kv_head)
      : rows(ResultRows<Config>::of(params, item, kv_head)), count(own_rows<Config>(item)) {}

  // Rows that do not exist are the item's first.
  __device__ __forceinline__ const unsigned char* row(int row) const { return rows.bytes(row < count ? row : 0); }

  // The eight pairs of a unit, rotated, to place(pair, x, y).
  template <class Place>
  __device__ __forceinline__ static void rotate_pairs(const uint4& first, const uint4& second, const Angles& a, Place place) {
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
};

}  // namespace kgen
