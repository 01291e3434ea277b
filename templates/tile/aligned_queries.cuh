// Queries that the matrix units rotate, for each run of keys at positions in their segment
// (sm90).
//
// A row at position p is rotated by p - offset, for a run that begins at `offset`. With p0 the
// position of its item's first token that is a rotation by p - p0, the same for all runs, and
// one by p0 - offset, the same for all rows. The first is done once an item, by arithmetic:
// the queries are then aligned. The second is a product, rotated = aligned * R^T, where R has
// a block of 16x16 for each unit, of which the eight pairs rotate among themselves. Of 128
// rows and 128 dimensions it takes the matrix units as long as four keys, and a quarter of
// the instructions that the arithmetic does.
//
// Shared memory has no room for aligned queries. They are where the rows' results will be.
//
// Aligned queries and R are fp16, whose roundings are an eighth of the last one's, to bf16.
// To have more of its range above 1, queries are scaled by a power of two, and R by its
// inverse: elements up to 2^19 in magnitude are right, those above 2^-12 as close as bf16,
// and smaller ones within 2^-21.
#pragma once
#include "item.cuh"
#include "warpgroup.cuh"

namespace kgen {

constexpr float aligned_scale = 0x1p-4f;

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

// The aligned queries of an item, for one KV head. A row has head_dim fp16 elements, for every
// two units four chunks: of each unit the pairs (x, y) of both blocks that are at place t, which
// are those of the lanes with lane % 4 = t.
template <class Config>
struct AlignedQueries {
  static_assert(Config::v_head_dim >= Config::head_dim, "results have room for queries");
  static constexpr float scale = aligned_scale;
  ResultRows<Config> rows;
  int count;  // rows that exist

  __device__ __forceinline__ static AlignedQueries of(const AttendParams& params, const Item& item, int kv_head) {
    return {ResultRows<Config>::of(params, item, kv_head), own_rows<Config>(item)};
  }

  // What rotate_query_to does with a unit.
  __device__ __forceinline__ void rotate(uint4& first, uint4& second, const Angles& a) const {
    const uint32_t x[4] = {first.x, first.y, first.z, first.w}, y[4] = {second.x, second.y, second.z, second.w};
    uint32_t pair[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 u = ptx::unpack<typename Config::Element>(x[i]), v = ptx::unpack<typename Config::Element>(y[i]);
      auto rotate = [&](int p, float x, float y) {
        pair[2 * PairPlace::index(p) + PairPlace::block(p)] = ptx::pack<ptx::fp16>(x * a.cos[p] - y * a.sin[p], y * a.cos[p] + x * a.sin[p]);
      };
#if KGEN_INTERLEAVED
      rotate(i, u.x, u.y), rotate(4 + i, v.x, v.y);
#else
      rotate(2 * i, u.x, v.x), rotate(2 * i + 1, u.y, v.y);
#endif
    }
    first = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    second = make_uint4(pair[4], pair[5], pair[6], pair[7]);
  }
  __device__ __forceinline__ void store(int token_row, int head, int unit, const uint4& first, const uint4& second) const {
    if (token_row >= count) return;
    unsigned char* to = rows.bytes(token_row) + head * rows.head_bytes + unit / 2 * (4 * chunk_bytes) + unit % 2 * 8;
    *reinterpret_cast<uint2*>(to) = make_uint2(first.x, first.y);
    *reinterpret_cast<uint2*>(to + chunk_bytes) = make_uint2(first.z, first.w);
    *reinterpret_cast<uint2*>(to + 2 * chunk_bytes) = make_uint2(second.x, second.y);
    *reinterpret_cast<uint2*>(to + 3 * chunk_bytes) = make_uint2(second.z, second.w);
  }
};

// Where a lane of the warpgroup that rotates reads its rows of an item's aligned queries: of
// every 64 rows two. Rows that do not exist are the item's first.
template <class Config>
struct AlignedRows {
  const unsigned char* row[Config::rows / 64][2];

  __device__ __forceinline__ static AlignedRows of(const AlignedQueries<Config>& aligned, int warp, int lane) {
    AlignedRows rows;
#pragma unroll
    for (int i = 0; i < Config::rows / 64; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 64 * i + 16 * warp + 8 * h + lane / 4;
        rows.row[i][h] = aligned.rows.bytes(row < aligned.count ? row : 0) + lane % 4 * chunk_bytes;
      }
    return rows;
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

template <class Config, int Threads>
__device__ __forceinline__ void clear_rotation(RunRotation<Config>& rotation, int thread) {
  for (int i = thread * chunk_bytes; i < rotation.size; i += Threads * chunk_bytes) ptx::store_16(rotation.bytes + i, make_uint4(0, 0, 0, 0));
}

// Of a rotation that was cleared once, all that is not always zero. Pairs that are not rotated
// have the angle 0.
template <class Config, int Threads>
__device__ __forceinline__ void make_rotation(RunRotation<Config>& rotation, const float* rope, int position, int thread) {
  constexpr float factor = 1.f / aligned_scale;
  for (int i = thread; i < Config::head_dim / 2; i += Threads) {
    const int unit = i / 8, pair = i % 8;
    const float2 a = i < Config::rotary_dim / 2 ? angle_at<Config>(rope, position, i) : make_float2(1.f, 0.f);
    const float cos = factor * a.x, sin = factor * a.y;
    unsigned char* x_row = rotation.bytes + rotation.block(unit) + PairPlace::block(pair) * 2 * rotation.stride(unit) +
                           PairPlace::index(pair) * (2 * chunk_bytes + 4);
    *reinterpret_cast<uint32_t*>(x_row) = ptx::pack<ptx::fp16>(cos, -sin);
    *reinterpret_cast<uint32_t*>(x_row + chunk_bytes) = ptx::pack<ptx::fp16>(sin, cos);
  }
}

// The warpgroup's aligned queries, of 64 rows from first_row on, times R^T, to where the
// products with keys take them from.
template <class Config>
__device__ __forceinline__ void rotate_aligned(const unsigned char* const (&rows)[2], const RunRotation<Config>& rotation,
                                               ColumnTile<Config::rows, Config::head_dim>& query, int first_row, int warp, int lane) {
  using Element = typename Config::Element;
  using Units = RotationUnits<Config>;
  const uint64_t r = ptx::plain_matrix_descriptor(ptx::shared_address(rotation.bytes), rotation.stride(0), rotation.stride(0));
  // The lane's row of what a warp stores at a time: sixteen rows of a unit's two chunks.
  const int row = first_row + 16 * warp + lane % 16, second = lane / 16;
  const uint32_t target = ptx::shared_address(query.bytes);
#pragma unroll
  for (int unit = 0; unit < Units::count; unit += 2) {
    const uint4 low = ptx::load_16(rows[0] + unit / 2 * (4 * chunk_bytes)), high = ptx::load_16(rows[1] + unit / 2 * (4 * chunk_bytes));
    const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
    float d[2][8];
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int stride = rotation.stride(unit + i) - rotation.stride(0);
      ptx::Wgmma<ptx::fp16, 16>::registers_rows(d[i], a[i], ptx::plain_descriptor_behind(r, rotation.block(unit + i), stride, stride), false);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::wgmma_touch(d[i]);
      const float(&x)[8] = d[i];  // pair 0 of the first block (x[0], x[1]) and, eight rows below, (x[2], x[3]); then of the second
#if KGEN_INTERLEAVED
      const uint32_t chunks[4] = {ptx::pack<Element>(x[0], x[1]), ptx::pack<Element>(x[2], x[3]), ptx::pack<Element>(x[4], x[5]), ptx::pack<Element>(x[6], x[7])};
#else
      const uint32_t chunks[4] = {ptx::pack<Element>(x[0], x[4]), ptx::pack<Element>(x[2], x[6]), ptx::pack<Element>(x[1], x[5]), ptx::pack<Element>(x[3], x[7])};
#endif
      const int to_first = query.byte(row, Units::first_chunk(unit + i)), to_second = query.byte(row, Units::second_chunk(unit + i));
      ptx::stmatrix_x4(target + (second == 0 ? to_first : to_second), chunks);
    }
  }
}

}  // namespace kgen
