// Warps that rotate tiles of raw keys where tensor copies have put them (sm90).
//
// bf16 keys are rotated in pairs of fp16, two at a time, and are fp16 in their products with
// queries. That rounds cosines, sines and keys to 11 bits, a key in the end to 8 times as many
// values as baked ones have; keys beyond 65504 in magnitude are out of range. fp16 keys are
// rotated in fp32, for the same bits as baked ones.
//
// A tile of 128 keys of 128 dimensions is 8192 pairs, two of which take 14 instructions: 4 for
// their angles, 4 for their rotation, and 6 to become fp16. In fp32 that is 22. Whatever else
// it cost would count, so an angle's terms stay where they are: lane i takes each 32 keys' i-th, and
// keeps the low terms, of so many positions further than the first's, of its warp's units in
// registers from tile to tile. The high terms, of the first's position, are common to 32 keys or 64; a tile's are on
// their way while the tile before is rotated, and in shared memory before its keys are. (Of fp16 keys, whose
// bits are to be baked ones', low and high terms are the table's two: lane i takes the keys whose positions end in the bits of i,
// and high terms are those of multiples of 32.) 32 keys of a unit take about 70
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

// (cos, sin) of two pairs' angles, which are sums of two each.
__device__ __forceinline__ float4 add_two_angles(const float4& a, const float4& b) {
  return make_float4(a.x * b.x - a.y * b.y, a.y * b.x + a.x * b.y, a.z * b.z - a.w * b.w, a.w * b.z + a.z * b.w);
}

// The high terms of the tile that is rotated: of each unit, for the first of each 32 keys, or of each 64; of fp16 keys for
// each multiple of 32 among their positions or below the first.
template <class Config>
struct HighTerms {
  static constexpr int rows = OwnKeys<Config>::count / 32 + (fp16_keys<Config> ? 0 : 1);
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
  static constexpr int alike = !Short && rounds == 2 ? 2 : 1;  // rounds with the same high terms: registers have the low terms of so many
  static constexpr int terms = slots * (alike == 1 ? High::rows : 1), shares = (4 * terms + lanes - 1) / lanes;
  static_assert(1 << Config::rope_low_bits == lanes, "a lane for each row of the low level");
  static_assert(Own::count % lanes == 0, "the lanes take whole rounds of keys");

  const float* rope;
  High& high;
  int warp;
  KeyTerms low[slots][alike];
  float4 coming[shares][2];  // the lane's share of the next tile's high terms, as sums of two: (cos, sin) of two pairs each

  // Asked for anew: low terms and what the warp follows the tiles by leave no registers
  // for addresses.
  __device__ __forceinline__ int unit(int slot) const {
    const unsigned first = ptx::here(warp);
    return (Warps == 4 && !Short ? first % 4u : first) + slot * Warps;  // the compiler is to know that it is below 4: chunks' quotients are constants then
  }
  __device__ __forceinline__ bool has(int slot) const { return Units::rotated % Warps == 0 || slot < slots - 1 || unit(slot) < Units::rotated; }

  __device__ __forceinline__ void load_low_terms() {
    const float *row = rope + ptx::lane_index() * Config::rotary_dim, *sixteen = rope + lanes / 2 * Config::rotary_dim;
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      const int pairs = has(slot) ? 2 * chunk_elements * unit(slot) : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float4 two = *reinterpret_cast<const float4*>(row + pairs + 4 * i);
        low[slot][0].set(i, two);
        if constexpr (alike == 1) continue;
        const float4 half = *reinterpret_cast<const float4*>(sixteen + pairs + 4 * i);
        low[slot][alike - 1].set(i, add_two_angles(add_two_angles(two, half), half));
      }
    }
  }

  // The lane's i-th share of the high terms: which rounds' of which of the warp's units. Four lanes have a unit's.
  struct Share {
    int slot, round;
    bool exists;
  };
  __device__ __forceinline__ Share share(int i) const {
    const int term = i * (lanes / 4) + ptx::lane_index() / 4, slot = term % slots;
    return {slot, term / slots * alike, term < terms && has(slot)};
  }

  // Loads the high terms of its units for a tile.
  __device__ __forceinline__ void fetch(const KeyTile& tile) {
    const int first = first_key_position(tile) + Own::first(), tokens = tile.end - tile.begin - Own::first();
    const int last = first + (tokens < Own::count ? tokens : Own::count) - 1, base = fp16_keys<Config> ? first : first & ~(lanes - 1);
#pragma unroll
    for (int i = 0; i < shares; ++i) {
      const Share s = share(i);
      if (!s.exists) continue;
      int position = base + s.round * lanes;
      if (position > last) position = last < 0 ? 0 : last;  // the table may end with the last token's
      const AngleRows rows = angle_rows<Config>(rope, position);
      const int pairs = 2 * chunk_elements * unit(s.slot) + 4 * (ptx::lane_index() % 4);
      coming[i][0] = *reinterpret_cast<const float4*>(rows.low + pairs), coming[i][1] = *reinterpret_cast<const float4*>(rows.high + pairs);
    }
  }
  // Hands the fetched terms to the warp's lanes, who are done with the tile before.
  __device__ __forceinline__ void publish() {
    ptx::sync_warp();
#pragma unroll
    for (int i = 0; i < shares; ++i) {
      const Share s = share(i);
      if (s.exists) high.terms[unit(s.slot)][s.round].set(ptx::lane_index() % 4, add_two_angles(coming[i][0], coming[i][1]));
    }
    ptx::sync_warp();
  }

  // Rotates this warp's units of a tile, whose high terms are published, once wait() has returned, and fetches the next one's. Rows that the
  // tile does not have are rotated too, whatever they hold: they are masked.
  template <class Wait>
  __device__ __forceinline__ void rotate(Tile& keys, int position, const KeyTile& next_tile, Wait wait) {
    if constexpr (Short) {
      fetch(next_tile);
      wait();
      rotate_by_round(keys, fp16_keys<Config> ? 0 : position & (lanes - 1));
    } else {
      rotate_ahead(keys, next_tile, wait);
    }
    pass(keys);
  }

  // The lane's row of the first round, where the first key is lane `first`'s: of eight lanes in a row no two have the same row & 7, so that
  // they meet in no bank.
  __device__ __forceinline__ int first_row(int first = 0) const { return Own::first() + ((ptx::lane_index() - first) & (lanes - 1)); }

  __device__ __forceinline__ void rotate_by_round(Tile& keys, int first) {
    const int row = first_row(first), carry = ptx::lane_index() < first;  // the row's multiple of 32 is the next one
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      if (!has(slot)) continue;
      const int u = unit(slot);
      unsigned char* const a = keys.bytes + Tile::byte(row, Units::first_rotated(u));
      unsigned char* const b = keys.bytes + Tile::byte(row, Units::second_rotated(u));
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        uint4 x = ptx::load_16(a + i * round_bytes), y = ptx::load_16(b + i * round_bytes);
        rotate_by_terms<Config>(x, y, high.terms[u][i + carry].load(), low[slot][0]);
        ptx::store_16(a + i * round_bytes, x);
        ptx::store_16(b + i * round_bytes, y);
      }
    }
  }

  // Where a unit has its chunks in the first round: those of further rounds are as far behind as an
  // instruction can say. Each is asked for anew, else the compiler finds every round's by itself.
  struct Places {
    unsigned char *first, *second;

    __device__ __forceinline__ void load(int round, uint4& x, uint4& y) const {
      x = ptx::load_16(first + round * round_bytes), y = ptx::load_16(second + round * round_bytes);
    }
    __device__ __forceinline__ void store(int round, const uint4& x, const uint4& y) const {
      ptx::store_16(first + round * round_bytes, x);
      ptx::store_16(second + round * round_bytes, y);
    }
  };
  __device__ __forceinline__ Places places(Tile& keys, int unit) const {
    const int first = Tile::byte(first_row(), Units::first_rotated(unit)), second = Tile::byte(first_row(), Units::second_rotated(unit));
    unsigned char* const chunk = keys.bytes + ptx::here(first);
    return {chunk, chunk + (second - first)};
  }

  // The compiler moves no load across a store, and puts off the others. So a step's terms are loaded before the stores of the
  // one before, and chunks as soon as others have left their registers, of which there are enough for four steps'.
  template <class Wait>
  __device__ __forceinline__ void rotate_ahead(Tile& keys, const KeyTile& next_tile, Wait wait) {
    static_assert(fp16_keys<Config>, "a round's keys have the same high terms");
    constexpr int steps = slots * rounds, ahead = steps < 4 ? steps : 4;  // a step: 32 keys of a unit
    uint4 x[ahead], y[ahead];
    Places at[slots];
    auto load = [&](int step) {
      const int slot = step / rounds;
      if (step < steps && has(slot)) at[slot].load(step % rounds, x[step % ahead], y[step % ahead]);
    };
    const KeyTerms* const terms = &high.terms[0][0] + ptx::here(unit(0) * rounds);
    auto terms_of = [&](int step) { return terms[step / rounds * (Warps * rounds) + step % rounds].load(); };
    if (steps < 3) fetch(next_tile);
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) at[slot] = places(keys, unit(slot));
    KeyTerms now;
    if (has(0)) now = terms_of(0);
    wait();
#pragma unroll
    for (int step = 0; step < ahead; ++step) load(step);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const int slot = step / rounds;
      if (steps > 2 && step == (steps > ahead ? (slots - 1) * rounds : 1)) fetch(next_tile);  // no sooner: chunks leave no registers
      if (!has(slot)) continue;
      const bool others = (step + 1) % alike == 0 && step + 1 < steps && has((step + 1) / rounds);
      const KeyTerms next = others ? terms_of(step + 1) : now;
      rotate_by_terms<Config>(x[step % ahead], y[step % ahead], now, low[slot][step % alike]);
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
