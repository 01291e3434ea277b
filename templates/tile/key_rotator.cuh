// Warps that rotate tiles of raw keys where tensor copies have put them (sm90).
//
// bf16 keys are rotated in pairs of fp16, two at a time, and are fp16 in their products with
// queries. That rounds cosines, sines and keys to 11 bits, a key in the end to 8 times as many
// values as baked ones have; keys beyond 65504 in magnitude are out of range. fp16 keys are
// rotated in fp32, for the same bits as baked ones.
//
// A tile of 128 keys of 128 dimensions is 8192 pairs, two of which take 14 instructions: 4 for
// their angles, 4 for their rotation, and 6 to become fp16. In fp32 that is 22. Whatever else
// it cost would count, so an angle's terms stay where they are: lane i takes the keys whose
// positions end in the bits of i, and keeps the low terms of these, of its warp's units, in
// registers from tile to tile. The high terms are common to 32 keys; a tile's are on their way
// to shared memory while the tile before is rotated. 32 keys of a unit take about 70
// instructions, and the tile 2200: a quarter of the issue slots of its products, or by two blocks an eighth of each one's.
// Of shared memory 64 KiB a tile are read and written, beside 224 KiB by copies and products.
#pragma once
#include "pipeline.cuh"
#if KGEN_FP16_KEYS
#include "fp16_pairs.cuh"
#endif

namespace kgen {

#if KGEN_FP16_KEYS
template <class Config>
constexpr bool fp16_keys = true;  // whose terms leave registers for keys ahead of their use

using KeyTerms = Fp16Terms;

template <class Element>
__device__ __forceinline__ uint4 to_fp16(uint4 chunk) {
  auto convert = [](uint32_t pair) {
    const float2 x = ptx::unpack<Element>(pair);
    return ptx::pack<ptx::fp16>(x.x, x.y);
  };
  return make_uint4(convert(chunk.x), convert(chunk.y), convert(chunk.z), convert(chunk.w));
}

// Rotates the two chunks of a unit, in place, by the sums of high and low angles. They become
// fp16.
template <class Config>
__device__ __forceinline__ void rotate_by_terms(uint4& first, uint4& second, const KeyTerms& high, const KeyTerms& low) {
  const KeyTerms angles = add_angles(high, low);
  const uint4 u = to_fp16<typename Config::Element>(first), v = to_fp16<typename Config::Element>(second);
#if KGEN_INTERLEAVED
  uint32_t x[4] = {ptx::lower_halves(u.x, u.y), ptx::lower_halves(u.z, u.w), ptx::lower_halves(v.x, v.y), ptx::lower_halves(v.z, v.w)};
  uint32_t y[4] = {ptx::upper_halves(u.x, u.y), ptx::upper_halves(u.z, u.w), ptx::upper_halves(v.x, v.y), ptx::upper_halves(v.z, v.w)};
#else
  uint32_t x[4] = {u.x, u.y, u.z, u.w}, y[4] = {v.x, v.y, v.z, v.w};
#endif
  rotate_fp16(x, y, angles);
#if KGEN_INTERLEAVED
  first = make_uint4(ptx::lower_halves(x[0], y[0]), ptx::upper_halves(x[0], y[0]), ptx::lower_halves(x[1], y[1]), ptx::upper_halves(x[1], y[1]));
  second = make_uint4(ptx::lower_halves(x[2], y[2]), ptx::upper_halves(x[2], y[2]), ptx::lower_halves(x[3], y[3]), ptx::upper_halves(x[3], y[3]));
#else
  first = make_uint4(x[0], x[1], x[2], x[3]);
  second = make_uint4(y[0], y[1], y[2], y[3]);
#endif
}
#else
template <class Config>
constexpr bool fp16_keys = false;

// (cos, sin) of eight pairs' angles, those of pairs 2i and 2i + 1 in the i-th.
struct KeyTerms {
  float4 two[4];

  __device__ __forceinline__ void set(int i, float4 terms) { two[i] = terms; }
  __device__ __forceinline__ KeyTerms load() const {
    auto at = [&](int i) { return ptx::as_floats(ptx::load_16(two + i)); };
    return {{at(0), at(1), at(2), at(3)}};
  }
};

// Rotates the two chunks of a unit, in place, by the sums of high and low angles.
template <class Config>
__device__ __forceinline__ void rotate_by_terms(uint4& first, uint4& second, const KeyTerms& high, const KeyTerms& low) {
  AngleTerms terms;
  terms.negative = false;  // no key stands before position 0
#pragma unroll
  for (int i = 0; i < 4; ++i) terms.low[i] = low.two[i], terms.high[i] = high.two[i];
  rotate_chunks<Config>(first, second, add_angles(terms, 1.f));
}
#endif

// The high terms of the tile that is rotated: of each unit, for each multiple of 32 among its
// keys' positions or below the first.
template <class Config>
struct HighTerms {
  static constexpr int rows = OwnKeys<Config>::count / 32 + 1;
  alignas(16) KeyTerms terms[RotationUnits<Config>::rotated][rows];
};

// One of Warps warps that share out the units of every tile. Short: in as few instructions as
// can be, where those of a kernel's many roles push each other out of their cache (H200, decode
// of 128 sequences: a tenth of the time); else in as little time.
template <class Config, int Warps, bool Short>
struct KeyRotator {
  using Tile = ColumnTile<Config::keys, Config::head_dim>;
  using Units = RotationUnits<Config>;
  using High = HighTerms<Config>;
  using Own = OwnKeys<Config>;
  static constexpr int lanes = 32, rounds = Own::count / lanes, slots = (Units::rotated + Warps - 1) / Warps, round_bytes = lanes * Tile::row_bytes;
  static_assert(1 << Config::rope_low_bits == lanes, "a lane for each row of the low level");
  static_assert(Own::count % lanes == 0, "the lanes take whole rounds of keys");
  static_assert(High::rows * 4 <= lanes, "a lane for each two pairs of a unit's terms");

  const float* rope;
  High& high;
  int warp;
  KeyTerms low[slots];
  float4 coming[slots];  // the lane's (cos, sin) of two pairs of the next tile's high terms

  // Asked for anew: low terms and what the warp follows the tiles by leave no registers
  // for addresses.
  __device__ __forceinline__ int unit(int slot) const {
    const unsigned first = ptx::here(warp);
    return (Warps == 4 && !Short ? first % 4u : first) + slot * Warps;  // the compiler is to know that it is below 4: chunks' quotients are constants then
  }
  __device__ __forceinline__ bool has(int slot) const { return Units::rotated % Warps == 0 || slot < slots - 1 || unit(slot) < Units::rotated; }

  __device__ __forceinline__ void load_low_terms() {
    const float* row = rope + ptx::lane_index() * Config::rotary_dim;
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      const float4* terms = reinterpret_cast<const float4*>(row + (has(slot) ? 2 * chunk_elements * unit(slot) : 0));
#pragma unroll
      for (int i = 0; i < 4; ++i) low[slot].set(i, terms[i]);
    }
  }

  // Loads the high terms of its units for a tile.
  __device__ __forceinline__ void fetch(const KeyTile& tile) {
    const int here = ptx::lane_index();
    const int first = first_key_position(tile) + Own::first(), tokens = tile.end - tile.begin - Own::first();
    const int last = first + (tokens < Own::count ? tokens : Own::count) - 1;
    int row = (first >> Config::rope_low_bits) + here / 4;
    if (row > last >> Config::rope_low_bits) row = last < 0 ? 0 : last >> Config::rope_low_bits;  // the table may end with the last token's
    const float* terms = rope + (lanes + row) * Config::rotary_dim + 4 * (here % 4);
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      if (!has(slot)) continue;
      coming[slot] = *reinterpret_cast<const float4*>(terms + 2 * chunk_elements * unit(slot));
    }
  }
  // Hands the fetched terms to the warp's lanes, who are done with the tile before.
  __device__ __forceinline__ void publish() {
    const int here = ptx::lane_index(), row = here / 4;
    ptx::sync_warp();
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      if (!has(slot) || row >= High::rows) continue;
      high.terms[unit(slot)][row].set(here % 4, coming[slot]);
    }
    ptx::sync_warp();
  }

  // The lane's rows of a tile of keys, one in each round of 32, and what they take of the
  // high terms.
  struct Rows {
    Tile& keys;
    int first, carry;  // the first's multiple of 32 is the next one

    __device__ __forceinline__ unsigned char* chunk(int round, int chunk) const { return keys.bytes + Tile::byte(first, chunk) + round * round_bytes; }
  };
  __device__ __forceinline__ KeyTerms high_terms(const Rows& rows, int unit, int round) const { return high.terms[unit][round + rows.carry].load(); }

  // Rotates this warp's units of a tile, whose high terms are published, and fetches the next one's. Rows that the
  // tile does not have are rotated too, whatever they hold: they are masked.
  __device__ __forceinline__ void rotate(Tile& keys, int position, const KeyTile& next_tile) {
    // Of eight lanes in a row no two have the same row & 7, so that they meet in no bank.
    const int here = ptx::lane_index(), first = position & (lanes - 1);
    const Rows rows = {keys, Own::first() + ((here - first) & (lanes - 1)), here < first};
    if constexpr (Short) {
      fetch(next_tile);
      rotate_by_round(rows);
    } else {
      rotate_ahead(rows, next_tile);
    }
    pass(keys);
  }

  __device__ __forceinline__ void rotate_by_round(const Rows& rows) {
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      if (!has(slot)) continue;
      const int u = unit(slot), a = Units::first_rotated(u), b = Units::second_rotated(u);
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        uint4 x = ptx::load_16(rows.chunk(i, a)), y = ptx::load_16(rows.chunk(i, b));
        rotate_by_terms<Config>(x, y, high_terms(rows, u, i), low[slot]);
        ptx::store_16(rows.chunk(i, a), x);
        ptx::store_16(rows.chunk(i, b), y);
      }
    }
  }

  // Where a unit has its chunks in the first round, and their high terms: those of further rounds are as far behind as an
  // instruction can say. Each is asked for anew, else the compiler finds every round's by itself.
  struct Places {
    unsigned char *first, *second;
    const KeyTerms* terms;

    __device__ __forceinline__ void load(int round, uint4& x, uint4& y) const {
      x = ptx::load_16(first + round * round_bytes), y = ptx::load_16(second + round * round_bytes);
    }
    __device__ __forceinline__ void store(int round, const uint4& x, const uint4& y) const {
      ptx::store_16(first + round * round_bytes, x);
      ptx::store_16(second + round * round_bytes, y);
    }
    __device__ __forceinline__ KeyTerms high(int round) const { return terms[round].load(); }
  };
  __device__ __forceinline__ Places places(const Rows& rows, int unit) const {
    const int first = Tile::byte(rows.first, Units::first_rotated(unit)), second = Tile::byte(rows.first, Units::second_rotated(unit));
    unsigned char* const chunk = rows.keys.bytes + ptx::here(first);
    return {chunk, chunk + (second - first), &high.terms[0][0] + ptx::here(unit * High::rows + rows.carry)};
  }

  // The compiler moves no load across a store, and puts off the others. So a step's terms are loaded before the stores of the
  // one before, and chunks as soon as others have left their registers, of which there are enough for four steps'.
  __device__ __forceinline__ void rotate_ahead(const Rows& rows, const KeyTile& next_tile) {
    constexpr int steps = slots * rounds, ahead = steps < 4 ? steps : 4;  // a step: 32 keys of a unit
    uint4 x[ahead], y[ahead];
    Places at[slots];
    auto load = [&](int step) {
      const int slot = step / rounds;
      if (step >= steps || !has(slot)) return;
      if (step % rounds == 0) at[slot] = places(rows, unit(slot));
      at[slot].load(step % rounds, x[step % ahead], y[step % ahead]);
    };
    auto terms_of = [&](int step) { return at[step / rounds].high(step % rounds); };
    if (ahead == steps) fetch(next_tile);
#pragma unroll
    for (int step = 0; step < ahead; ++step) load(step);
    KeyTerms now;
    if (has(0)) now = terms_of(0);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const int slot = step / rounds;
      if (ahead < steps && step == (slots - 1) * rounds) fetch(next_tile);  // no sooner: chunks to come leave no registers
      if (!has(slot)) continue;
      const bool more = step + 1 < steps && has((step + 1) / rounds);
      const KeyTerms next = more ? terms_of(step + 1) : now;
      rotate_by_terms<Config>(x[step % ahead], y[step % ahead], now, low[slot]);
      at[slot].store(step % rounds, x[step % ahead], y[step % ahead]);
      load(step + ahead);
      now = next;
    }
  }

  // Elements that are not rotated become fp16 too.
  __device__ __forceinline__ void pass(Tile& keys) {
#if KGEN_PASSED_KEYS
#pragma unroll 1
    for (int u = Units::rotated + ptx::here(warp); u < Units::count; u += Warps)
#pragma unroll 1
      for (int row = Own::first() + ptx::lane_index(); row < Own::first() + Own::count; row += lanes) {
        unsigned char* a = keys.bytes + Tile::byte(row, Units::first_chunk(u));
        unsigned char* b = keys.bytes + Tile::byte(row, Units::second_chunk(u));
        ptx::store_16(a, to_fp16<typename Config::Element>(ptx::load_16(a)));
        ptx::store_16(b, to_fp16<typename Config::Element>(ptx::load_16(b)));
      }
#endif
  }
};

}  // namespace kgen
