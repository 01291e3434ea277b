// What the warps of an attend kernel of family sm90 have in common.
#pragma once
#include "pipeline.cuh"
#if KGEN_ROTATED_KEYS
#include "key_rotator.cuh"
#endif
#if KGEN_ALIGNED_PAIRS
#include "aligned_pairs.cuh"
#endif
#if KGEN_ALIGNED_PRODUCTS
#include "aligned_products.cuh"
#endif

namespace kgen {

// Whether the warps that rotate are a warpgroup of their own, as those that do it by the matrix
// units are, and those of raw keys and of prefill's queries where there are registers for them.
template <class Config>
constexpr bool rotates_apart = Config::rotators == 4;

// Whether each warpgroup that attends rotates its own queries, as those of three must that leave no registers to
// others.
template <class Config>
constexpr bool rotates_own = Config::rotators == 0;

// Whether each warpgroup gives an item's queries back as soon as it has its last weights, and stores results from registers: where
// there is one place for queries, the next item's are rotated in it under the last outputs. (Where there are two, it takes 1 percent
// longer to store so.)
#if KGEN_EARLY_QUERIES
constexpr bool gives_queries_early = true;
#else
constexpr bool gives_queries_early = false;
#endif

// How many warps bring an item's queries near ahead of their rotation, which waits for them: those beside the copiers that would
// have nothing to do. (Where raw keys or aligned queries are rotated it was not tried.)
template <class Config>
#if KGEN_ROTATED_KEYS
constexpr int query_prefetchers = 0;
#else
#if KGEN_ALIGNED_QUERIES
constexpr int query_prefetchers = 0;
#else
constexpr int query_prefetchers = rotates_own<Config> || rotates_apart<Config> ? 2 : 0;
#endif
#endif

// Whether each block of a cluster copies and rotates its share of a tile's keys, and gives it to the other.
template <class Config>
#if KGEN_EXCHANGED_KEYS
constexpr bool exchanges_keys = true;
#else
constexpr bool exchanges_keys = false;
#endif

// An item that a warp keeps in one register: each lane of eight has a word of it. Read once more where the item ends, it would come
// from the L2 cache, as queries have pushed it out of L1, and nothing hides that.
struct WarpItem {
  static constexpr int words = sizeof(Item) / sizeof(int32_t);
  int32_t word;

  __device__ __forceinline__ static WarpItem of(const Item& item, int lane) { return {reinterpret_cast<const int32_t*>(&item)[lane % words]}; }
  // To all lanes.
  __device__ __forceinline__ Item item() const {
    const int32_t w = ptx::here(word);
    return {ptx::shuffle(w, 0), ptx::shuffle(w, 1), ptx::shuffle(w, 2), ptx::shuffle(w, 3), ptx::shuffle(w, 4), ptx::shuffle(w, 5), ptx::shuffle(w, 6), ptx::shuffle(w, 7)};
  }
};

// What consumers ask of every tile of keys, in one word: 0 where the tile does not exist.
struct TileNote {
  static constexpr int token_bits = 0xff, is_masked = 0x100, is_parts_first = 0x200, is_rotations_first = 0x400;
  int word;

  template <class Config>
  __device__ __forceinline__ static TileNote of(const TileOfItem& t, int last_position) {
    const KeyTile& tile = t.copies.tile;
    static_assert(Config::keys <= token_bits, "room for a tile's tokens");
    if (!tile.exists()) return {0};
    const int tokens = tile.end - tile.begin;
    return {(tokens < Config::keys ? tokens : Config::keys) | (needs_mask<Config, Config::keys>(tile, t.q_index, last_position) ? is_masked : 0) |
            (t.begins_part ? is_parts_first : 0) | (needs_rotation(t.base_before, tile) ? is_rotations_first : 0)};
  }

  __device__ __forceinline__ bool exists() const { return word != 0; }
  __device__ __forceinline__ int tokens() const { return word & token_bits; }
  // Whether it has as many keys as a tile can have, all rows may see them, and nothing begins with it but, where
  // another warp rotates queries, a rotation of these.
  template <class Config>
  __device__ __forceinline__ bool whole() const {
    return (rotates_own<Config> ? word : word & ~is_rotations_first) == Config::keys;
  }
  // Whether some row may not see some of its keys.
  __device__ __forceinline__ bool masked() const { return (word & is_masked) != 0; }
  // Whether it is the first of a further part, and that for which queries are rotated anew.
  __device__ __forceinline__ bool begins_part() const { return (word & is_parts_first) != 0; }
  __device__ __forceinline__ bool begins_rotation() const {
#if KGEN_ROTATED_PER_RUN
    return (word & is_rotations_first) != 0;
#else
    return false;
#endif
  }
};

template <class Config>
struct AttendSm90Shared {
  static constexpr int copiers = Config::rotators == 3 ? 1 : 2;
  using Works = WorkRing<Config::rows / 16 + Config::rotators + query_prefetchers<Config> + copiers - 1 + exchanges_keys<Config>>;  // all warps with work but the finder

  // Queries are published as they come, and their places as they are free: of aligned ones, and of those that are given back early, a
  // warpgroup's rows at a time.
#if KGEN_ALIGNED_QUERIES
  static constexpr int query_parts = Config::rows / 64;
#else
  static constexpr int query_parts = gives_queries_early ? Config::rows / 64 : 1;
#endif
  __device__ static __forceinline__ int query_part(int row) { return query_parts == 1 ? 0 : row / 64; }

  // Queries rotated for one run each; unless they are given back early, the last of an item is also where its outputs
  // are gathered.
  ColumnTile<Config::rows, Config::head_dim> query[Config::queries];
  ColumnTile<Config::keys, Config::head_dim> key[Config::key_stages];
  ColumnTile<Config::keys, Config::v_head_dim> value[Config::stages];
#if KGEN_ROTATED_KEYS
  HighTerms<Config> high;
#endif
#if KGEN_ALIGNED_QUERIES
  RunRotation<Config> rotation;
#endif
  TileNote note[Config::key_stages];  // of the tile of keys in the stage; one that does not exist ends an item
  KeyTile tile[Config::key_stages];
#if KGEN_WINDOW
  int last_position;  // of the item whose keys are being copied
#endif
  alignas(8) Works works;
  unsigned long long query_full[Config::queries][query_parts], query_free[Config::queries][query_parts];
  unsigned long long key_full[Config::key_stages], key_free[Config::key_stages];
#if KGEN_CLUSTER
  unsigned long long note_read[Config::key_stages];
#endif
#if KGEN_ROTATED_KEYS
  unsigned long long key_rotated[Config::key_stages];
#endif
#if KGEN_EXCHANGED_KEYS
  unsigned long long own_rotated[Config::key_stages];  // of this block's share, which is yet to be given to the other
#endif
  unsigned long long value_full[Config::stages], value_free[Config::stages];
};

}  // namespace kgen
