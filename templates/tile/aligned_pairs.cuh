// Aligned queries that are rotated for a run in pairs of fp16 (sm90). A lane keeps the cosines and sines
// of one unit's pairs, which all rows have alike: with them a row's unit takes 16 instructions to
// rotate, and 24 to become bf16.
#pragma once
#include "aligned_queries.cuh"
#include "fp16_pairs.cuh"

namespace kgen {

// An item's, for one KV head, where its results will be. A row has of each unit the x of its eight pairs, then
// the y.
template <class Config>
struct AlignedQueries {
  static_assert(Config::v_head_dim >= Config::head_dim, "results have room for queries");
  static constexpr float scale = Config::query_scale;
  static constexpr bool keeps_angles = false;
  ResultRows<Config> rows;
  int count;  // rows that exist

  __device__ __forceinline__ static AlignedQueries of(const AttendParams& params, const Item& item, int kv_head, ColumnTile<Config::rows, Config::head_dim>&, PlaceInUse) {
    return {ResultRows<Config>::of(params, item, kv_head), own_rows<Config>(item.q_count)};
  }

  // Rows that do not exist are the item's first.
  __device__ __forceinline__ const unsigned char* row(int row) const { return rows.bytes(row < count ? row : 0); }

  // What rotate_query_to does with a unit.
  __device__ __forceinline__ void rotate(uint4& first, uint4& second, const Angles& a) const {
    float x[8], y[8];
    align_pairs<Config>(first, second, a, [&](int pair, float of_x, float of_y) { x[pair] = of_x, y[pair] = of_y; });
    auto pack = [](const float(&of)[8], int pair) { return ptx::pack<ptx::fp16>(of[pair], of[pair + 1]); };
    first = make_uint4(pack(x, 0), pack(x, 2), pack(x, 4), pack(x, 6));
    second = make_uint4(pack(y, 0), pack(y, 2), pack(y, 4), pack(y, 6));
  }
  __device__ __forceinline__ void store(int token_row, int head, int unit, const uint4& first, const uint4& second) const {
    if (token_row >= count) return;
    unsigned char* to = rows.bytes(token_row) + head * rows.head_bytes + unit * (2 * chunk_bytes);
    ptx::store_16(to, first);
    ptx::store_16(to + chunk_bytes, second);
    ptx::prefetch_to_keep(to);
  }
};

// The cosines and sines of a run.
template <class Config>
struct RunRotation {
  alignas(16) Fp16Terms unit[Config::head_dim / 16];
};

// Rotates an item's aligned queries, of every 64 rows, which a warpgroup's products take, sixteen by each of
// a warpgroup's warps. A lane has one unit of every few rows.
template <class Config>
struct AlignedRotator {
  static constexpr int parts = Config::rows / 64;
  static constexpr int units = Config::head_dim / 16, rows_at_a_time = 32 / units, turns = 16 / rows_at_a_time;
  RunRotation<Config>& rotation;
  int thread;
  const AlignedQueries<Config>* aligned;

  __device__ __forceinline__ AlignedRotator(RunRotation<Config>& rotation, int thread) : rotation(rotation), thread(thread) {}

  // Takes an item's, which stay where they are.
  __device__ __forceinline__ void take(const AlignedQueries<Config>& queries) { aligned = &queries; }

  // Turns to the run for which they are rotated by `position`. Pairs that are not rotated have the angle 0.
  __device__ __forceinline__ void turn_to(const float* rope, int position, float) {
    rotators_meet();  // all are done with the run before
    const int two = ptx::here(thread);
    static_assert(Config::head_dim / 4 <= aligned_rotator_threads, "a thread for every two pairs");
    if (two < Config::head_dim / 4) {
      float2 a = make_float2(1.f, 0.f), b = a;
      if (2 * two < Config::rotary_dim / 2) a = angle_at<Config>(rope, position, 2 * two), b = angle_at<Config>(rope, position, 2 * two + 1);
      rotation.unit[two / 4].set(two % 4, make_float4(a.x, a.y, b.x, b.y));
    }
    rotators_meet();
  }

  // All rows, to where the products with keys take them from, a part's once wait(part) has returned;
  // publish(part) when they are there.
  template <class Wait, class Publish>
  __device__ __forceinline__ void rotate(ColumnTile<Config::rows, Config::head_dim>& query, Wait wait, Publish publish) const {
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      rotate_part(part, query, wait);
      ptx::fence_async_shared();
      publish(part);
    }
  }

  template <class Wait>
  __device__ __forceinline__ void rotate_part(int part, ColumnTile<Config::rows, Config::head_dim>& query, Wait wait) const {
    using Units = RotationUnits<Config>;
    using Element = typename Config::Element;
    // On their way before the wait, and from then on ahead of their use.
    constexpr int ahead = turns < 3 ? turns : 3;
    const int lane = ptx::here(thread) % 32, first_row = 64 * part + ptx::here(thread) / 32 * 16 + lane / units, unit = lane % units;
    uint4 coming_x[ahead], coming_y[ahead];
    auto load = [&](int turn) {
      const unsigned char* from = aligned->row(first_row + turn * rows_at_a_time) + unit * (2 * chunk_bytes);
      coming_x[turn % ahead] = ptx::load_16(from), coming_y[turn % ahead] = ptx::load_16(from + chunk_bytes);
    };
#pragma unroll
    for (int turn = 0; turn < ahead; ++turn) load(turn);
    const Fp16Terms terms = rotation.unit[unit].load();
    wait(part);
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
      const uint4 u = coming_x[turn % ahead], v = coming_y[turn % ahead];
      if (turn + ahead < turns) load(turn + ahead);
      uint32_t x[4] = {u.x, u.y, u.z, u.w}, y[4] = {v.x, v.y, v.z, v.w};
      rotate_fp16(x, y, terms);
      uint32_t first[4], second[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 a = ptx::unpack<ptx::fp16>(x[i]), b = ptx::unpack<ptx::fp16>(y[i]);
#if KGEN_INTERLEAVED
        uint32_t(&to)[4] = i < 2 ? first : second;
        to[2 * i % 4] = ptx::pack<Element>(a.x, b.x), to[2 * i % 4 + 1] = ptx::pack<Element>(a.y, b.y);
#else
        first[i] = ptx::pack<Element>(a.x, a.y), second[i] = ptx::pack<Element>(b.x, b.y);
#endif
      }
      const int row = first_row + turn * rows_at_a_time;
      ptx::store_16(query.bytes + query.byte(row, Units::first_chunk(unit)), make_uint4(first[0], first[1], first[2], first[3]));
      ptx::store_16(query.bytes + query.byte(row, Units::second_chunk(unit)), make_uint4(second[0], second[1], second[2], second[3]));
    }
  }
};

}  // namespace kgen
