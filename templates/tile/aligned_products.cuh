// Aligned queries that the matrix units rotate for a run (sm90): rotated = aligned * R^T, where R has
// a block of 16x16 for each unit, of which the eight pairs rotate among themselves. Of 128
// rows and 128 dimensions it takes the matrix units as long as four keys, and a quarter of
// the instructions that fp32 arithmetic does.
//
// The rotators keep an item's aligned queries in registers from its first run to its last. Read anew for
// each run they took 2 percent longer (extend of 512 tokens over 8k, H100).
#pragma once
#include "aligned_queries.cuh"
#include "warpgroup.cuh"

namespace kgen {

// Of a unit's eight pairs the first product's block has four and the second's four, so that
// each lane's results are a fragment's: which block a pair is in, and its place there.
struct PairPlace {
  __device__ static __forceinline__ int block(int pair) {
#if KGEN_INTERLEAVED
    return pair / 4;
#else
    return pair % 2;
#endif
  }
  __device__ static __forceinline__ int index(int pair) {
#if KGEN_INTERLEAVED
    return pair % 4;
#else
    return pair / 2;
#endif
  }
};

// An item's, where they will be rotated to, which has room for rows that do not exist too. A row has of each unit a
// chunk of the pairs (x, y) of its first block and one of its second's.
template <class Config>
struct AlignedQueries {
  static constexpr float scale = Config::query_scale;
  static constexpr bool keeps_angles = true;
  ColumnTile<Config::rows, Config::head_dim>& place;
  PlaceInUse free;

  __device__ __forceinline__ static AlignedQueries of(const AttendParams&, const Item&, int, ColumnTile<Config::rows, Config::head_dim>& place, PlaceInUse free) { return {place, free}; }

  // What rotate_query_to does with a unit.
  __device__ __forceinline__ void rotate(uint4& first, uint4& second, const Angles& a) const {
    uint32_t block[2][4];
    align_pairs<Config>(first, second, a, [&](int p, float x, float y) { block[PairPlace::block(p)][PairPlace::index(p)] = ptx::pack<ptx::fp16>(x, y); });
    first = make_uint4(block[0][0], block[0][1], block[0][2], block[0][3]);
    second = make_uint4(block[1][0], block[1][1], block[1][2], block[1][3]);
  }
  __device__ __forceinline__ void store(int token_row, int head, int unit, const uint4& first, const uint4& second) const {
    if (head == 0) free.template wait<Config::rows / 64>();  // under the reads of queries and angles
    ptx::store_16(place.bytes + place.byte(token_row + head, 2 * unit), first);
    ptx::store_16(place.bytes + place.byte(token_row + head, 2 * unit + 1), second);
  }

  // A fragment of sixteen rows.
  __device__ __forceinline__ void load(uint32_t (&fragment)[4], int first_row, int unit, int lane) const {
    ptx::ldmatrix_x4(fragment, ptx::shared_address(place.bytes) + place.byte(first_row + lane % 16, 2 * unit + lane / 16));
  }
};

// R of a run, as the right side of the product: of each unit two blocks of eight by eight, for
// four pairs each, and one of zeros that all units share. For that it
// lies half-way between the two of each: the rows of 16 of a unit's elements and of its
// results are as far apart, once to the zeros and twice to the other block.
template <class Config>
struct RunRotation {
  static constexpr int units = Config::head_dim / 16, block_bytes = 8 * chunk_bytes;
  static constexpr int size = (2 * units + 1) * block_bytes;
  unsigned char bytes[size];

  // A unit's first block, and how far the zeros are behind it, and its second block behind them.
  __device__ static __forceinline__ int block(int unit) { return unit * block_bytes; }
  __device__ static __forceinline__ int stride(int unit) { return (units - unit) * block_bytes; }
};

// Rotates an item's aligned queries, of every 64 rows, which a warpgroup's products take, sixteen by each of
// a warpgroup's warps together.
template <class Config>
struct AlignedRotator {
  static constexpr int parts = Config::rows / 64, units = Config::head_dim / 16;
  RunRotation<Config>& rotation;
  int thread;
  uint32_t fragment[parts][units][4];  // of aligned queries

  __device__ __forceinline__ AlignedRotator(RunRotation<Config>& rotation, int thread) : rotation(rotation), thread(thread) {
    for (int i = thread * chunk_bytes; i < rotation.size; i += aligned_rotator_threads * chunk_bytes) ptx::store_16(rotation.bytes + i, make_uint4(0, 0, 0, 0));
  }

  // Takes an item's: a warp the rows that it will rotate, and store where it took them from.
  __device__ __forceinline__ void take(const AlignedQueries<Config>& aligned) {
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const int here = ptx::here(thread);
#pragma unroll
      for (int unit = 0; unit < units; ++unit) aligned.load(fragment[part][unit], 64 * part + here / 32 * 16, unit, here % 32);
    }
  }

  // Turns to the run for which they are rotated by `position`: makes all of R, times a factor, that is not always zero. Pairs
  // that are not rotated have the angle 0.
  __device__ __forceinline__ void turn_to(const float* rope, int position, float factor) {
    rotators_meet();  // all are done with the run before
    const int i = ptx::here(thread);
    static_assert(Config::head_dim / 2 <= aligned_rotator_threads, "a thread for each pair");
    if (i < Config::head_dim / 2) {
      const int unit = i / 8, pair = i % 8;
      const float2 a = i < Config::rotary_dim / 2 ? angle_at<Config>(rope, position, i) : make_float2(1.f, 0.f);
      const float cos = factor * a.x, sin = factor * a.y;
      unsigned char* x_row = rotation.bytes + rotation.block(unit) + PairPlace::block(pair) * 2 * rotation.stride(unit) +
                             PairPlace::index(pair) * (2 * chunk_bytes + 4);
      *reinterpret_cast<uint32_t*>(x_row) = ptx::pack<ptx::fp16>(cos, -sin);
      *reinterpret_cast<uint32_t*>(x_row + chunk_bytes) = ptx::pack<ptx::fp16>(sin, cos);
    }
    ptx::fence_async_shared();
    rotators_meet();
  }

  // All rows to where the products with keys take them from, a part's once wait(part) has returned; publish(part) when they are
  // there.
  template <class Wait, class Publish>
  __device__ __forceinline__ void rotate(ColumnTile<Config::rows, Config::head_dim>& query, Wait wait, Publish publish) const {
    using Element = typename Config::Element;
    using Units = RotationUnits<Config>;
    const uint64_t r = ptx::plain_matrix_descriptor(ptx::shared_address(rotation.bytes), rotation.stride(0), rotation.stride(0));
    // The lane's row of what a warp stores at a time: sixteen rows of a unit's two chunks.
    const int lane = ptx::here(thread) % 32, to_row = ptx::here(thread) / 32 * 16 + lane % 16, second = lane / 16;
    const uint32_t target = ptx::shared_address(query.bytes);
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      wait(part);
#pragma unroll
      for (int unit = 0; unit < units; ++unit) {
        const int stride = rotation.stride(unit) - rotation.stride(0);
        float x[8];  // pair 0 of the first block (x[0], x[1]) and, eight rows below, (x[2], x[3]); then of the second
        ptx::wgmma_fence();  // one product at a time: for two there are no registers, and the compiler waits for each
        ptx::Wgmma<ptx::fp16, 16>::registers_rows(x, fragment[part][unit], ptx::plain_descriptor_behind(r, rotation.block(unit), stride, stride), false);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_touch(x);
#if KGEN_INTERLEAVED
        const uint32_t chunks[4] = {ptx::pack<Element>(x[0], x[1]), ptx::pack<Element>(x[2], x[3]), ptx::pack<Element>(x[4], x[5]), ptx::pack<Element>(x[6], x[7])};
#else
        const uint32_t chunks[4] = {ptx::pack<Element>(x[0], x[4]), ptx::pack<Element>(x[2], x[6]), ptx::pack<Element>(x[1], x[5]), ptx::pack<Element>(x[3], x[7])};
#endif
        const uint32_t to = target + (second == 0 ? query.byte(to_row, Units::first_chunk(unit)) : query.byte(to_row, Units::second_chunk(unit)));
        ptx::stmatrix_x4(to + part * (64 * query.row_bytes), chunks);  // the swizzle is the same there
      }
      ptx::fence_async_shared();
      publish(part);
    }
  }
};

}  // namespace kgen
