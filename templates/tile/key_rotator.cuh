// Warps that rotate tiles of raw keys where tensor copies have put them (sm90).
//
// A tile of 128 keys of 128 dimensions is 8192 pairs, each of which takes 11
// instructions: 4 for its angle, 4 for its rotation, 3 to unpack and pack it. Whatever else
// it cost would count, so an angle's terms stay where they are: lane i takes the keys whose
// positions end in the bits of i, and keeps the low terms of these, of its warp's units, in
// registers from tile to tile. The high terms are common to 32 keys; a tile's come to shared
// memory by copies that are under way while the tile before is rotated. 32 keys of a unit
// then take about 100 instructions, 88 of them the pairs', and the tile 3200: a third of the
// issue slots of the 2400 cycles or so of its products. Three warps have 1200 each, at most.
// Of shared memory 64 KiB a tile are read and written, beside 224 KiB by copies and products.
#pragma once
#include "item.cuh"

namespace kgen {

// The high terms of the tile that is rotated, (cos, sin) of eight pairs of each unit for
// each multiple of 32 among its keys' positions or below the first.
template <class Config>
struct HighTerms {
  static constexpr int rows = Config::keys / 32 + 1;
  static constexpr int chunks = 2 * chunk_elements * 4 / chunk_bytes;  // of a row of a unit
  uint4 chunk[RotationUnits<Config>::rotated][rows][chunks];
};

// One of Warps warps that share out the units of every tile.
template <class Config, int Warps>
struct KeyRotator {
  using Tile = ColumnTile<Config::keys, Config::head_dim>;
  using Units = RotationUnits<Config>;
  using High = HighTerms<Config>;
  static constexpr int lanes = 32, slots = (Units::rotated + Warps - 1) / Warps;
  static_assert(1 << Config::rope_low_bits == lanes, "a lane for each row of the low level");
  static_assert(Config::keys % lanes == 0, "the lanes take whole rounds of keys");
  static_assert(High::rows * High::chunks <= lanes, "a lane for each copy of a unit's terms");

  const float* rope;
  High& high;
  int warp, lane;
  float4 low[slots][chunk_elements / 2];

  // Asked for anew: low terms and what the warp follows the tiles by leave no registers
  // for addresses.
  __device__ __forceinline__ int unit(int slot) const { return ptx::here(warp) + slot * Warps; }
  __device__ __forceinline__ bool has(int slot) const { return Units::rotated % Warps == 0 || slot < slots - 1 || unit(slot) < Units::rotated; }

  __device__ __forceinline__ void load_low_terms() {
    const float* row = rope + lane * Config::rotary_dim;
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      const float4* terms = reinterpret_cast<const float4*>(row + (has(slot) ? 2 * chunk_elements * unit(slot) : 0));
#pragma unroll
      for (int i = 0; i < chunk_elements / 2; ++i) low[slot][i] = terms[i];
    }
  }

  // Starts the copies of the high terms of one unit for a tile; there is a group of
  // copies whether there is a tile or not.
  __device__ __forceinline__ void start(int slot, const KeyTile& tile) {
    const int here = ptx::here(lane), row = here / High::chunks, chunk = here % High::chunks;
    if (tile.exists() && has(slot) && row < High::rows) {
      const int first = first_key_position(tile), tokens = tile.end - tile.begin;
      const int last = first + (tokens < Config::keys ? tokens : Config::keys) - 1;
      const int from = (first >> Config::rope_low_bits) + row;
      // The table may end with the last token's row.
      const bool exists = from <= last >> Config::rope_low_bits;
      const float* source = rope + (lanes + (exists ? from : 0)) * Config::rotary_dim + 2 * chunk_elements * unit(slot);
      ptx::cp_async_16(ptx::shared_address(&high.chunk[unit(slot)][row][chunk]), source + chunk * (chunk_bytes / 4), exists);
    }
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void start(const KeyTile& tile) {
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) start(slot, tile);
  }

  // Rotates this warp's units of a tile, and starts the terms of the next. Rows that the
  // tile does not have are rotated too, whatever they hold: they are masked.
  __device__ __forceinline__ void rotate(Tile& keys, int position, const KeyTile& next_tile) {
    const int first = position & (lanes - 1);
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      ptx::cp_async_wait<slots - 1>();
      ptx::sync_warp();
      const int u = unit(slot);
      if (has(slot)) {
        const int here = ptx::here(lane);
        // The lane's first row. Of eight lanes in a row no two have the same row & 7, so that
        // they meet in no bank.
        const int row = (here - first) & (lanes - 1);
        const int carry = here < first;  // its multiple of 32 is the next
        unsigned char* a = keys.bytes + Tile::byte(row, Units::first_rotated(u));
        unsigned char* b = keys.bytes + Tile::byte(row, Units::second_rotated(u));
        const uint4* terms = high.chunk[u][carry];
        constexpr int rounds = Config::keys / lanes, round_bytes = lanes * Tile::row_bytes;
        uint4 x = ptx::load_16(a), y = ptx::load_16(b);
#pragma unroll 2
        for (int i = 0; i < rounds; ++i) {
          // The next round's (or again the first's, which nobody uses) under this one's work.
          const int next = (i + 1) % rounds * round_bytes;
          const uint4 next_x = ptx::load_16(a + next), next_y = ptx::load_16(b + next);
          AngleTerms angle;
          angle.negative = false;  // no key stands before position 0
#pragma unroll
          for (int j = 0; j < chunk_elements / 2; ++j) {
            angle.low[j] = low[slot][j];
            angle.high[j] = ptx::as_floats(ptx::load_16(terms + i * High::chunks + j));
          }
          rotate_chunks<Config>(x, y, add_angles(angle, 1.f));
          ptx::store_16(a + i * round_bytes, x);
          ptx::store_16(b + i * round_bytes, y);
          x = next_x, y = next_y;
        }
      }
      ptx::sync_warp();  // all lanes are done with the terms
      start(slot, next_tile);
    }
  }
};

}  // namespace kgen
