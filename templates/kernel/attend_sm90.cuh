// attend, many rows, on Hopper: prefill, extend and shared decode. A warpgroup for each 64
// rows of the tile does the softmax of one tile of keys under the products of the next. Of
// one more, one or two warps keep the tensor copies of K and V in flight, and the others
// rotate ahead of their use what is to be rotated: queries, and tiles of raw keys. Where queries
// are aligned (tile/aligned_queries), and where there is room for it with raw keys and in prefill,
// that is another warpgroup's work; of a cluster's two blocks each rotates half of a tile of raw keys then,
// and gives it to the other. Three warpgroups leave no registers to others: each rotates its own
// queries.
// Blocks are persistent: the copies and rotations of the next item start under the end of
// this one.
#pragma once
#include "../tile/attend_consumer.cuh"
#include "../tile/attend_copiers.cuh"

namespace kgen {

template <class Config>
__device__ __forceinline__ void attend_sm90(const AttendParams& params) {
  constexpr int consumers = Config::rows / 64;
  constexpr int helper_groups = rotates_apart<Config> ? 2 : 1;
  static_assert(Config::threads == 128 * (consumers + helper_groups), "a warpgroup for each 64 rows, and one that copies and rotates, or two");
  static_assert(rotates_own<Config> == (consumers == 3), "three warpgroups that attend, each with queries of its own");
  static_assert(sizeof(AttendSm90Shared<Config>) == Config::shared_bytes, "the plan's shared memory");
  static_assert(Config::v_head_dim <= Config::head_dim, "the outputs are staged in the query tile");
  AttendSm90Shared<Config>& shared = *reinterpret_cast<AttendSm90Shared<Config>*>(ptx::dynamic_shared());

  const int thread = ptx::thread_index();
#if KGEN_SHARED_DECODE
  if (leaves_at_once(params, worker())) return;
#endif
  read_ahead(params, thread);
  if (thread == 0) {
    shared.works.init();
    for (int s = 0; s < Config::queries && !rotates_own<Config>; ++s) {
      for (unsigned long long& full : shared.query_full[s]) ptx::barrier_init(ptx::shared_address(&full), rotator_threads<Config>);
      for (unsigned long long& free : shared.query_free[s]) ptx::barrier_init(ptx::shared_address(&free), 128 * consumers / AttendSm90Shared<Config>::query_parts);
    }
    for (int s = 0; s < Config::key_stages; ++s) {
      ptx::barrier_init(ptx::shared_address(&shared.key_full[s]), 1);
      ptx::barrier_init(ptx::shared_address(&shared.key_free[s]), cluster_blocks * 4 * consumers);
#if KGEN_CLUSTER
      ptx::barrier_init(ptx::shared_address(&shared.note_read[s]), 4 * consumers);
#endif
#if KGEN_ROTATED_KEYS
      ptx::barrier_init(ptx::shared_address(&shared.key_rotated[s]), exchanges_keys<Config> ? 1 : Config::rotators);
#if KGEN_EXCHANGED_KEYS
      ptx::barrier_init(ptx::shared_address(&shared.own_rotated[s]), Config::rotators);
#endif
#endif
    }
    for (int s = 0; s < Config::stages; ++s) {
      ptx::barrier_init(ptx::shared_address(&shared.value_full[s]), 1);
      ptx::barrier_init(ptx::shared_address(&shared.value_free[s]), cluster_blocks * 4 * consumers);
    }
    ptx::barrier_init_fence();
    acquire_maps(params);
  }
  ptx::sync_threads();
#if KGEN_CLUSTER
  ptx::cluster_start();
#endif

  // The registers of three or four warpgroups, shared out by need. Two have enough.
#if KGEN_ROTATED_KEYS
  constexpr int consumer_registers = 192, copiers_apart = 24;  // rotators have a unit's keys and its angles' terms in theirs
#else
  constexpr int copiers_apart = 24;
#if KGEN_ALIGNED_QUERIES
  constexpr int consumer_registers = Config::v_head_dim > 128 ? 208 : 192;  // rotators have aligned queries in theirs
#else
  constexpr int consumer_registers = rotates_own<Config> ? 160 : Config::v_head_dim > 128 ? 208 : 200;
#endif
#endif
  constexpr int other_registers = (consumers + helper_groups == 4 ? 512 : 504) - consumers * consumer_registers;
  // Of warps that could go on a scheduler takes the first, and the consumers are what all
  // others are there for.
  constexpr int consumer_threads = 128 * consumers, copier_threads = Config::threads - consumer_threads - rotator_threads<Config>;
  if (thread < consumer_threads) {
    if constexpr (consumers > 1) ptx::registers_take<consumer_registers>();
    consume<Config>(params, shared, ptx::shuffle(thread / 128, 0));  // so that the compiler knows that it is one in a warp
    return;
  }
  const int helper = thread - consumer_threads;
  // The warps of a warpgroup give theirs by one instruction, whatever they do afterwards.
  constexpr bool gives_together = consumers > 1 && !rotates_apart<Config>, gives_apart = consumers > 1 && rotates_apart<Config>;
  if constexpr (gives_together) ptx::registers_give<other_registers>();
  // (That the compiler knows it is one in a warp spares registers where the warps of a warpgroup part here. Where
  // warpgroups part it costs some.)
  const int helper_warp = rotates_apart<Config> ? helper / 32 : ptx::shuffle(helper / 32, 0);
  if (helper_warp >= copier_threads / 32) {
    if constexpr (gives_apart) ptx::registers_give<other_registers - copiers_apart>();
#if KGEN_ROTATED_KEYS
    rotate_queries_and_keys<Config>(params, shared, helper - copier_threads);
#else
    if constexpr (!rotates_own<Config>) rotate_queries<Config>(params, shared, helper - copier_threads);
#endif
    return;
  }
  if constexpr (gives_apart) ptx::registers_give<copiers_apart>();
  const int copier = ptx::shuffle(helper / 32, 0), lane = helper % 32;
  if constexpr (copier_threads == 32) {
    produce_keys_and_values<Config>(params, shared, helper);
  } else if (copier == 0) {
    KeyCopier<Config> keys = {params, shared, lane};
    for_each_tile<Config, Config::key_stages, true>(params, WorkList<typename AttendSm90Shared<Config>::Works, true>{shared.works, lane}, [&](const TileOfItem& t) { keys.copy(t); });
    keys.end();
  } else if (copier == 1) {
    ValueCopier<Config> values = {params, shared, lane};
    for_each_tile<Config, Config::stages, false>(params, WorkList<typename AttendSm90Shared<Config>::Works, false>{shared.works, lane}, [&](const TileOfItem& t) { values.copy(t); });
    values.end();
#if KGEN_EXCHANGED_KEYS
  } else if (copier == 2) {
    give_keys<Config>(params, shared, lane);
#endif
  } else if constexpr (query_prefetchers<Config> > 0) {
    prefetch_queries<Config>(params, shared, helper - 32 * AttendSm90Shared<Config>::copiers);
  }
}

}  // namespace kgen
