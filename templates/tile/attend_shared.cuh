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
// units are, and those of raw keys where there are registers for them.
template <class Config>
constexpr bool rotates_apart = Config::rotators == 4;

template <class Config>
struct AttendSm90Shared {
  // One more than of values: keys are held until their weights are known to be right, and raw
  // ones are rotated first.
  static constexpr int key_stages = Config::stages + 1;
  static constexpr int copiers = Config::rotators == 3 ? 1 : 2;
  using Works = WorkRing<Config::rows / 16 + Config::rotators + copiers - 1>;  // all warps with work but the finder

  // Queries are published as they come, and their places as they are free: of aligned ones a
  // warpgroup's rows at a time.
#if KGEN_ALIGNED_QUERIES
  static constexpr int query_parts = Config::rows / 64;
#else
  static constexpr int query_parts = 1;
#endif
  __device__ static __forceinline__ int query_part(int row) { return query_parts == 1 ? 0 : row / 64; }

  // Queries rotated for one run each; the last of an item is also where its outputs
  // are gathered.
  ColumnTile<Config::rows, Config::head_dim> query[Config::queries];
  ColumnTile<Config::keys, Config::head_dim> key[key_stages];
  ColumnTile<Config::keys, Config::v_head_dim> value[Config::stages];
#if KGEN_ROTATED_KEYS
  HighTerms<Config> high;
#endif
#if KGEN_ALIGNED_QUERIES
  RunRotation<Config> rotation;
#endif
  int masked[key_stages];       // whether some row may not see some of the stage's keys
  int begins_part[key_stages];  // whether they are a further part's first
  KeyTile tile[key_stages];  // that of the keys in the stage; one that does not exist ends an item
  alignas(8) Works works;
  unsigned long long query_full[Config::queries][query_parts], query_free[Config::queries][query_parts];
  unsigned long long key_full[key_stages], key_free[key_stages];
#if KGEN_ROTATED_KEYS
  unsigned long long key_rotated[key_stages];
#endif
  unsigned long long value_full[Config::stages], value_free[Config::stages];
};

}  // namespace kgen
