// RoPE: angles from exact tables, fp32 arithmetic, one rounding.
#pragma once
#include "pages.cuh"
#include "shared_tile.cuh"

namespace kgen {

// cos and sin of position * w for the eight pairs of one chunk, times a factor.
struct Angles {
  float cos[chunk_elements], sin[chunk_elements];
};

// What the table holds of one position's angles. The table has (cos, sin) of
// position * w_t, for the positions below 1 << rope_low_bits and for the multiples of
// it; a position is the sum of one of each, and the angle-addition formulas give its cos
// and sin from theirs.
struct AngleTerms {
  float4 low[chunk_elements / 2], high[chunk_elements / 2];
  bool negative;
};

// The table's two rows for a position, or for its negative.
struct AngleRows {
  const float *low, *high;
};

template <class Config>
__device__ __forceinline__ AngleRows angle_rows(const float* rope, int position) {
  constexpr int row = Config::rotary_dim;  // floats: rotary_dim / 2 pairs of (cos, sin)
  const int magnitude = position < 0 ? -position : position;
  return {rope + (magnitude & ((1 << Config::rope_low_bits) - 1)) * row, rope + ((1 << Config::rope_low_bits) + (magnitude >> Config::rope_low_bits)) * row};
}

template <class Config>
__device__ __forceinline__ AngleTerms load_angle_terms(const float* rope, int position, int first_pair) {
  const AngleRows rows = angle_rows<Config>(rope, position);
  const float *low = rows.low + 2 * first_pair, *high = rows.high + 2 * first_pair;
  AngleTerms terms;
  terms.negative = position < 0;
#pragma unroll
  for (int i = 0; i < chunk_elements / 2; ++i) {
    terms.low[i] = *reinterpret_cast<const float4*>(low + 4 * i);
    terms.high[i] = *reinterpret_cast<const float4*>(high + 4 * i);
  }
  return terms;
}

__device__ __forceinline__ Angles add_angles(const AngleTerms& terms, float factor) {
  const float sine_factor = terms.negative ? -factor : factor;
  Angles a;
#pragma unroll
  for (int i = 0; i < chunk_elements; i += 2) {
    const float4 l = terms.low[i / 2], h = terms.high[i / 2];
    a.cos[i] = factor * (h.x * l.x - h.y * l.y);
    a.sin[i] = sine_factor * (h.y * l.x + h.x * l.y);
    a.cos[i + 1] = factor * (h.z * l.z - h.w * l.w);
    a.sin[i + 1] = sine_factor * (h.w * l.z + h.z * l.w);
  }
  return a;
}

template <class Config>
__device__ __forceinline__ Angles angles_at(const float* rope, int position, int first_pair, float factor) {
  return add_angles(load_angle_terms<Config>(rope, position, first_pair), factor);
}

// Those of position 0.
__device__ __forceinline__ Angles no_angles(float factor) {
  Angles a;
#pragma unroll
  for (int i = 0; i < chunk_elements; ++i) a.cos[i] = factor, a.sin[i] = 0.f;
  return a;
}

// (cos, sin) of one pair's angle.
template <class Config>
__device__ __forceinline__ float2 angle_at(const float* rope, int position, int pair) {
  const AngleRows rows = angle_rows<Config>(rope, position);
  const float2 low = reinterpret_cast<const float2*>(rows.low)[pair], high = reinterpret_cast<const float2*>(rows.high)[pair];
  const float sine = high.y * low.x + high.x * low.y;
  return make_float2(high.x * low.x - high.y * low.y, position < 0 ? -sine : sine);
}

// Rotates pairs (x, y) by the angles, in place, from elements of one type to those of another.
template <class From, class To>
__device__ __forceinline__ void rotate_pairs(uint32_t (&x)[4], uint32_t (&y)[4], const Angles& a) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = ptx::unpack<From>(x[i]), v = ptx::unpack<From>(y[i]);
    const float c0 = a.cos[2 * i], s0 = a.sin[2 * i], c1 = a.cos[2 * i + 1], s1 = a.sin[2 * i + 1];
    x[i] = ptx::pack<To>(u.x * c0 - v.x * s0, u.y * c1 - v.y * s1);
    y[i] = ptx::pack<To>(v.x * c0 + u.x * s0, v.y * c1 + u.y * s1);
  }
}

// The same for interleaved pairs: x holds the first four pairs, y the next four.
template <class From, class To>
__device__ __forceinline__ void rotate_interleaved_pairs(uint32_t (&x)[4], uint32_t (&y)[4], const Angles& a) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = ptx::unpack<From>(x[i]), v = ptx::unpack<From>(y[i]);
    const float c0 = a.cos[i], s0 = a.sin[i], c1 = a.cos[4 + i], s1 = a.sin[4 + i];
    x[i] = ptx::pack<To>(u.x * c0 - u.y * s0, u.y * c0 + u.x * s0);
    y[i] = ptx::pack<To>(v.x * c1 - v.y * s1, v.y * c1 + v.x * s1);
  }
}

// A vector of head_dim elements is rotated in units of two chunks, which hold
// eight whole pairs; after the rotated units come the chunks that are not rotated.
template <class Config>
struct RotationUnits {
  static constexpr int rotated = Config::rotary_dim / (2 * chunk_elements);
  static constexpr int passed = (Config::head_dim - Config::rotary_dim) / (2 * chunk_elements);
  static constexpr int count = rotated + passed;

  // Of a rotated unit.
  __device__ static __forceinline__ int first_rotated(int unit) {
#if KGEN_INTERLEAVED
    return 2 * unit;
#else
    return unit;
#endif
  }
  __device__ static __forceinline__ int second_rotated(int unit) {
#if KGEN_INTERLEAVED
    return 2 * unit + 1;
#else
    return unit + rotated;
#endif
  }
  // Of any.
  __device__ static __forceinline__ int first_chunk(int unit) { return unit < rotated ? first_rotated(unit) : 2 * unit; }
  __device__ static __forceinline__ int second_chunk(int unit) { return unit < rotated ? second_rotated(unit) : 2 * unit + 1; }
};

#if KGEN_ROPE
// Rotates the two chunks of a unit, in place.
template <class Config, class To = typename Config::Element>
__device__ __forceinline__ void rotate_chunks(uint4& first, uint4& second, const Angles& a) {
  uint32_t x[4] = {first.x, first.y, first.z, first.w}, y[4] = {second.x, second.y, second.z, second.w};
#if KGEN_INTERLEAVED
  rotate_interleaved_pairs<typename Config::Element, To>(x, y, a);
#else
  rotate_pairs<typename Config::Element, To>(x, y, a);
#endif
  first = make_uint4(x[0], x[1], x[2], x[3]);
  second = make_uint4(y[0], y[1], y[2], y[3]);
}
#endif

// Rotates one unit, in place, by `position`.
template <class Config>
__device__ __forceinline__ void rotate_unit(uint4& first, uint4& second, const float* rope, int position, int unit) {
#if KGEN_ROPE
  if (unit < RotationUnits<Config>::rotated) {
    rotate_chunks<Config>(first, second, angles_at<Config>(rope, position, unit * chunk_elements, 1.f));
  }
#endif
}

// ---- queries ----

// The query rows of a work item: row r is the item's query token r / group, head
// r % group of the KV head's group.
template <class Config>
struct QueryRows {
  long long token_bytes;
  int count;  // rows that exist

#if KGEN_SHARED_DECODE
  const unsigned char* q;  // query token 0, the KV head's first query head
  const Member* members;   // of the item
  const int32_t *positions, *offsets;  // of the query tokens; of the members for the run at `base`

  __device__ __forceinline__ const unsigned char* source(int token) const { return q + members[token].token * token_bytes; }
  __device__ __forceinline__ int rotation(int token, int base) const {
    const int position = positions[members[token].token];
#if KGEN_ROTATED_PER_RUN
    return base < 0 ? position : position - offsets[base + token];
#else
    return position;
#endif
  }
#else
  const unsigned char* q;    // the item's first token, the KV head's first query head
  const int32_t* positions;  // of the item's tokens

  __device__ __forceinline__ const unsigned char* source(int token) const { return q + token * token_bytes; }
  __device__ __forceinline__ int rotation(int token, int base) const { return positions[token] - base; }
#endif
};

// A tile of queries for products with keys, which has elements where keys have them. Whether a thread keeps a token's angles
// for all of its heads: see rotate_query_to.
template <class Config, class Tile, bool KeepsAngles = true>
struct QueryTile {
  static constexpr float scale = Config::query_scale;  // of all units
  static constexpr bool keeps_angles = KeepsAngles;
  Tile& tile;

  __device__ __forceinline__ void rotate(uint4& first, uint4& second, const Angles& a) const {
#if KGEN_ROPE
    rotate_chunks<Config, typename Config::ScoreElement>(first, second, a);
#endif
  }
  __device__ __forceinline__ void store(int token_row, int head, int unit, const uint4& first, const uint4& second) const {
    using Units = RotationUnits<Config>;
    ptx::store_16(tile.bytes + byte_below<Tile, Config::group>(token_row, head, Units::first_chunk(unit)), first);
    ptx::store_16(tile.bytes + byte_below<Tile, Config::group>(token_row, head, Units::second_chunk(unit)), second);
  }
};

// The most that `of` are a whole number of times, up to `most`.
__device__ constexpr int even_share(int of, int most) { return of % most == 0 ? most : even_share(of, most - 1); }

#if KGEN_ONE_HEAD
// Rotates Rows of the tile's queries, each of which is a token's one head of the KV head, for runs of the given base, times a factor, and hands
// them to the target, a QueryTile or AlignedQueries. A thread takes one unit of tokens that follow each other, which most
// often have high terms in common; while it rotates one, it asks for the next one's elements and low terms and for the position behind that. Rows
// that do not exist become zeros, with which a warp weighs its other rows as ever.
template <class Config, int Threads, int HeadsAtATime, int Rows = Config::rows, class Target>
__device__ __forceinline__ void rotate_query_to(const Target& target, const QueryRows<Config>& rows, const float* rope, int base, float factor, int thread, int first_row = 0) {
  using Units = RotationUnits<Config>;
  static_assert(Config::group == 1 && Units::passed == 0 && Threads % Units::count == 0, "all of one head is rotated, by a thread for each unit of some tokens");
  constexpr int tokens_at_a_time = Threads / Units::count;
  const int place = thread / Units::count, unit = thread % Units::count, pair = unit * chunk_elements;
  const int a = Units::first_chunk(unit) * chunk_bytes, b = Units::second_chunk(unit) * chunk_bytes;
  const int end = rows.count < first_row + Rows ? rows.count : first_row + Rows, exist = end > first_row ? end - first_row : 0;
  const int each = (exist + tokens_at_a_time - 1) / tokens_at_a_time;
  int token = first_row + place * each;
  const int last = (token + each < end ? token + each : end) - 1;
  auto next_of = [&](int token) { return token < last ? token + 1 : last; };
  auto load = [&](int token, uint4& first, uint4& second) { first = ptx::load_16(rows.source(token) + a), second = ptx::load_16(rows.source(token) + b); };
  auto load_terms = [&](const float* row, float4(&terms)[chunk_elements / 2]) {
#pragma unroll
    for (int i = 0; i < chunk_elements / 2; ++i) terms[i] = *reinterpret_cast<const float4*>(row + 2 * pair + 4 * i);
  };
  if (token <= last) {
    int position = rows.rotation(token, base), next_position = rows.rotation(next_of(token), base);
    uint4 first, second;
    load(token, first, second);
    AngleTerms terms = load_angle_terms<Config>(rope, position, pair);
#pragma unroll 1
    for (; token <= last; ++token) {
      uint4 next_first, next_second;
      float4 next_low[chunk_elements / 2];
      const AngleRows now = angle_rows<Config>(rope, position), next = angle_rows<Config>(rope, next_position);
      load(next_of(token), next_first, next_second);
      load_terms(next.low, next_low);
      const int position_behind = rows.rotation(next_of(next_of(token)), base);
      target.rotate(first, second, add_angles(terms, factor));
      target.store(token, 0, unit, first, second);
      if (next.high != now.high) load_terms(next.high, terms.high);
#pragma unroll
      for (int i = 0; i < chunk_elements / 2; ++i) terms.low[i] = next_low[i];
      terms.negative = next_position < 0;
      position = next_position, next_position = position_behind;
      first = next_first, second = next_second;
    }
  }
#pragma unroll 1
  for (int row = first_row + exist + place; row < first_row + Rows; row += tokens_at_a_time) target.store(row, 0, unit, make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0));
}
#else
// Rotates Rows of the tile's queries for runs of the given base, times a factor, and hands them to the target, a QueryTile or
// AlignedQueries; rows that do not exist become those of the item's first token. A thread
// takes one unit of one token, for all heads, which share the angles; or, of a target that does not keep
// these, for as many heads as it takes at a time.
template <class Config, int Threads, int HeadsAtATime, int Rows = Config::rows, class Target>
__device__ __forceinline__ void rotate_query_to(const Target& target, const QueryRows<Config>& rows, const float* rope, int base, float factor, int thread, int first_row = 0) {
  using Units = RotationUnits<Config>;
  constexpr int group = Config::group;
  constexpr bool whole_tokens = Rows % group == 0;
  // Of a part of the tile that is not whole tokens, the first may be another part's too.
  constexpr int tokens = (Rows - 1) / group + (whole_tokens || Rows == Config::rows ? 1 : 2);
  constexpr int heads_at_a_time = even_share(group, HeadsAtATime);
  constexpr int shares = Target::keeps_angles ? 1 : group / heads_at_a_time, heads = group / shares;  // of a token's heads
  for (int i = thread; i < tokens * Units::count * shares; i += Threads) {
    const int token = first_row / group + i / Units::count / shares, unit = i % Units::count, first_of_all = i / Units::count % shares * heads;
    const int a = Units::first_chunk(unit), b = Units::second_chunk(unit);
    const int source_token = token * group < rows.count ? token : 0;
    const unsigned char* source = rows.source(source_token) + a * chunk_bytes;
    const int second_chunk = (b - a) * chunk_bytes;
#if KGEN_ROPE
    Angles angles = {};  // with no value their registers would be taken beyond this function
    const bool has_angle = Units::passed == 0 || unit < Units::rotated, rotated = has_angle || target.scale != 1.f;
#endif
    // All loads of some heads are under way before the first is used.
#pragma unroll 1
    for (int first_head = first_of_all; first_head < first_of_all + heads; first_head += heads_at_a_time) {
      uint4 first[heads_at_a_time], second[heads_at_a_time];
#pragma unroll
      for (int h = 0; h < heads_at_a_time; ++h) {
        const unsigned char* head = source + (first_head + h) * (Config::head_dim * 2);
        first[h] = ptx::load_16(head);
        second[h] = ptx::load_16(head + second_chunk);
      }
#if KGEN_ROPE
      if (first_head == first_of_all && has_angle) {
        angles = angles_at<Config>(rope, rows.rotation(source_token, base), unit * chunk_elements, factor);
      } else if (first_head == first_of_all && rotated) {
        angles = no_angles(target.scale);
      }
#endif
#pragma unroll
      for (int h = 0; h < heads_at_a_time; ++h) {
        const int row = token * group, head = first_head + h;
        if (!whole_tokens && (row + head < first_row || row + head >= first_row + Rows)) continue;
#if KGEN_ROPE
        if (rotated) target.rotate(first[h], second[h], angles);
#endif
        target.store(row, head, unit, first[h], second[h]);
      }
    }
  }
}
#endif

template <class Config, int Threads, int HeadsAtATime, class Tile>
__device__ __forceinline__ void rotate_query(const QueryRows<Config>& rows, const float* rope, int base, float factor, int thread, Tile& tile) {
  rotate_query_to<Config, Threads, HeadsAtATime>(QueryTile<Config, Tile>{tile}, rows, rope, base, factor, thread);
}

// ---- keys ----

// Starts copying a tile of keys. Raw keys are shared out by units, so that a
// thread can rotate what it copied itself, with no barrier in between.
template <class Config, int Rows, int Threads>
__device__ __forceinline__ void load_keys(SharedTile<Rows, Config::head_dim>& tile, PagedTokens<Config, Config::head_dim> tokens,
                                          int begin, int end, int thread) {
#if KGEN_ENCODING_RAW
  using Units = RotationUnits<Config>;
  const uint32_t base = ptx::shared_address(tile.bytes);
  for_each_cell<Rows, Units::count, Threads>(thread, [&](int row, int unit) {
    const int index = begin + row;
    const bool valid = index < end;
    const unsigned char* source = tokens.token(valid ? index : end - 1);
    const int a = Units::first_chunk(unit), b = Units::second_chunk(unit);
    ptx::cp_async_16(base + tile_byte<Config::head_dim>(row, a), source + a * chunk_bytes, valid);
    ptx::cp_async_16(base + tile_byte<Config::head_dim>(row, b), source + b * chunk_bytes, valid);
  });
#else
  load_tile<Config, Config::head_dim, Rows, Threads>(tile, tokens, begin, end, thread);
#endif
}

#if KGEN_ENCODING_RAW
// Rotates this thread's part of a tile of raw keys, of which the first of `count` is at
// `position`. Rows behind them, which are zeros, take the last one's angles: the table may end
// with these.
template <class Config, int Rows, int Threads>
__device__ __forceinline__ void rotate_keys(SharedTile<Rows, Config::head_dim>& tile, const float* rope, int position, int count, int thread) {
  using Units = RotationUnits<Config>;
  // A cell at a time where the outputs take half of all registers; for_each_cell's
  // cells in the same order.
  constexpr int rows = Config::v_head_dim > 128 ? Threads / Units::count : Rows;
#pragma unroll 1
  for (int first_row = 0; first_row < Rows; first_row += rows) {
    for_each_cell<rows, Units::count, Threads>(thread, [&](int place, int unit) {
      const int row = first_row + place;
      unsigned char* a = tile.bytes + tile_byte<Config::head_dim>(row, Units::first_chunk(unit));
      unsigned char* b = tile.bytes + tile_byte<Config::head_dim>(row, Units::second_chunk(unit));
      uint4 first = ptx::load_16(a), second = ptx::load_16(b);
      rotate_unit<Config>(first, second, rope, position + (row < count ? row : count - 1), unit);
      ptx::store_16(a, first);
      ptx::store_16(b, second);
    });
  }
}
#endif

}  // namespace kgen
