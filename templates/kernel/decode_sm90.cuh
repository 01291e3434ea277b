// attend, few rows, on Hopper: decode. One warp keeps the tensor copies of K in
// flight, one those of V, one rotates queries ahead of their use; the consumers take the
// tiles of keys in turn, each with its own softmax over all rows, and a warp merges what
// they have of a part of an item while they are at the next. Raw keys are rotated where they lie by
// further warps: a consumer's products and softmax leave it no time for that. Blocks are
// persistent, so that nothing of this ever stops the copies.
#pragma once
#include "../tile/item.cuh"
#if KGEN_ROTATED_KEYS
#include "../tile/key_rotator.cuh"
#endif
#include "../tile/pipeline.cuh"
#include "../tile/warp_results.cuh"

namespace kgen {

// One part of a piece of the block's work, as the warp that rotates finds it ahead of the others.
struct DecodeTask {
  Item item;
  Part part;
  int kv_head;
  int tiles, queries;  // of keys; rotated for them. tiles is -1 after the last task
};

template <class Config>
struct DecodeSm90Shared {
  static constexpr int consumers = Config::warps - 4 - Config::rotators;
  static constexpr int tasks = 4;
  // A stage's tiles are then all one consumer's. Otherwise one could wait for a phase
  // of key_full while the phase before it, another's, is not complete, and take the one
  // before that, of the same parity, for it.
  static_assert(Config::stages % consumers == 0, "each stage must have one consumer");

  ColumnTile<Config::keys, Config::head_dim> key[Config::stages];
  ColumnTile<Config::keys, Config::v_head_dim> value[Config::stages];
  SharedTile<Config::rows, Config::head_dim> query[Config::queries];  // rotated for one run each
  WarpResult<Config> result[Config::results][consumers];
  alignas(16) float kept[kept_floats<Config> > 0 ? kept_floats<Config> : 4];  // of the merging warp
#if KGEN_ROTATED_KEYS
  HighTerms<Config> high;
#endif
  DecodeTask task[tasks];
  KeyTile tile[Config::stages];    // that of the stage
  int tile_query[Config::stages];  // which of the block's queries it takes, counted from its first
  // Keys make room for the next as soon as the scores are there, values later.
  alignas(8) unsigned long long key_full[Config::stages], key_free[Config::stages];
#if KGEN_ROTATED_KEYS
  unsigned long long key_rotated[Config::stages];
#endif
  unsigned long long value_full[Config::stages], value_free[Config::stages];
  unsigned long long query_full[Config::queries], query_free[Config::queries];
  unsigned long long task_full[tasks], task_free[tasks];
  unsigned long long result_full[Config::results], result_free[Config::results];
};

// The part of an item that begins with a run, for queries that are rotated against
// `base`; run becomes the first behind it.
template <class Config>
__device__ __forceinline__ DecodeTask task_of(const AttendParams& params, const Item& item, int kv_head, int part, int base, int& run) {
  DecodeTask task = {item, {part, true}, kv_head, 0, 0};
  for (bool ended = false; run < item.run_end && !ended; ++run) {
    const Run& r = pointer<Run>(params.runs)[run];
    ended = r.ends_part != 0;
    if (r.begin >= r.end) continue;
    const KeyTile tile = {run, r.begin, r.end, r.page, r.offset, r.causal};
    task.tiles += (r.end - r.begin + Config::keys - 1) / Config::keys;
    task.queries += needs_rotation(base, tile);
    base = rotation_base(tile);
  }
  task.part.last = run == item.run_end;
  return task;
}

// One warp: K, or V. The block's tiles go to the consumers in turn. Each warp goes
// through the block's fixed share by itself, as far ahead as its own room allows.
template <class Config, int Dim, bool Keys>
__device__ __forceinline__ void produce_for_decode(const AttendParams& params, DecodeSm90Shared<Config>& shared, ColumnTile<Config::keys, Dim>* stages,
                                                   const void* map, unsigned long long* all_full, unsigned long long* all_free, int lane) {
  RingPlace<Config::stages> place;
  int query = -1;  // of the tile
  for_each_tile<Config, Config::stages, false>(params, FixedShare{lane}, [&](const TileOfItem& t) {
    const KeyTile& tile = t.copies.tile;
    if (needs_rotation(t.base_before, tile)) ++query;
    wait_for_stage(all_free[place.stage], place.parity ^ 1);
    const uint32_t full = ptx::shared_address(&all_full[place.stage]);
    if (lane == 0) {
      if (Keys) shared.tile[place.stage] = tile, shared.tile_query[place.stage] = query;
      ptx::barrier_arrive_expecting(full, tile_bytes<Config, true, !Keys, Dim>(tile));
    }
    ptx::sync_warp();
    copy_tile<Config, true, !Keys>(stages[place.stage], map, full, t.copies, t.kv_head, params.kv_heads);
    place.advance();
  });
}

// One warp: publishes the block's tasks, and each one's queries, as often as they need
// a rotation of their own.
template <class Config>
__device__ __forceinline__ void rotate_for_decode(const AttendParams& params, DecodeSm90Shared<Config>& shared, int lane) {
  ptx::wait_for_previous_kernel();
  RingPlace<Config::queries> place;
  RingPlace<DecodeSm90Shared<Config>::tasks> task_place;
  auto publish = [&](const DecodeTask& task) {
    wait_for_stage(shared.task_free[task_place.stage], task_place.parity ^ 1);
    if (lane == 0) {
      shared.task[task_place.stage] = task;
      ptx::barrier_arrive(ptx::shared_address(&shared.task_full[task_place.stage]));
    }
    task_place.advance();
  };
  FixedShare works = {lane};
  for (Work work = first_work(params); work.exists(); work = works.next(params)) {
    const Item& item = pointer<Item>(params.items)[work.item];
    const QueryRows<Config> rows = query_rows<Config>(params, item, work.kv_head);
    int base = no_base, run = item.run_begin, part = 0;
    do {
      KeyTile tile = first_tile(params, run, item.run_end);
      const DecodeTask task = task_of<Config>(params, item, work.kv_head, part++, base, run);
      publish(task);
      for (; tile.exists() && tile.run < run; tile = first_tile(params, tile.run + 1, run)) {
        if (!needs_rotation(base, tile)) continue;
        base = rotation_base(tile);
        wait_for_stage(shared.query_free[place.stage], place.parity ^ 1);
        rotate_query<Config, 32, 4>(rows, pointer<float>(params.rope), base, query_factor<Config>(params), lane, shared.query[place.stage]);
        ptx::barrier_arrive(ptx::shared_address(&shared.query_full[place.stage]));
        place.advance();
      }
    } while (run < item.run_end);
  }
  publish({{}, {}, 0, -1, 0});
}

#if KGEN_ROTATED_KEYS
// Config::rotators warps: each tile of keys, between its copy and its use.
template <class Config>
__device__ __forceinline__ void rotate_keys_for_decode(const AttendParams& params, DecodeSm90Shared<Config>& shared, int rotator_warp, int lane) {
  KeyRotator<Config, Config::rotators, true> rotator = {pointer<float>(params.rope), shared.high, rotator_warp};
  rotator.load_low_terms();
  RingPlace<Config::stages> place;
  FixedShare works = {lane};
  for (Work work = first_work(params); work.exists(); work = works.next(params)) {
    const Item& item = pointer<Item>(params.items)[work.item];
    KeyTile tile = first_tile(params, item.run_begin, item.run_end);
    rotator.fetch(tile);
    rotator.publish();
    while (tile.exists()) {
      const int position = first_key_position(tile);
      tile = tile_after<Config::keys>(params, tile, item.run_end);
      rotator.rotate(shared.key[place.stage], position, tile, [&]() { ptx::barrier_wait(ptx::shared_address(&shared.key_full[place.stage]), place.parity); });
      rotator.publish();
      ptx::fence_async_shared();  // before the next copy to the stage
      ptx::barrier_arrive(ptx::shared_address(&shared.key_rotated[place.stage]));
      place.advance();
    }
  }
}
#endif

// The tasks, to a warp that does them.
template <class Config>
struct TaskReader {
  RingPlace<DecodeSm90Shared<Config>::tasks> place;

  __device__ __forceinline__ DecodeTask take(DecodeSm90Shared<Config>& shared) const {
    ptx::barrier_wait(ptx::shared_address(&shared.task_full[place.stage]), place.parity);
    return shared.task[place.stage];
  }
  __device__ __forceinline__ void give_back(DecodeSm90Shared<Config>& shared) {
    ptx::barrier_arrive(ptx::shared_address(&shared.task_free[place.stage]));
    place.advance();
  }
};

template <class Config>
__device__ __forceinline__ void consume_for_decode(const AttendParams& params, DecodeSm90Shared<Config>& shared, int warp, int lane) {
  using Element = typename Config::Element;
  using ScoreElement = typename Config::ScoreElement;
  constexpr int keys = Config::keys, stages = Config::stages, consumers = DecodeSm90Shared<Config>::consumers, m_tiles = Config::rows / 16;
  const float scale_log2 = score_exponent<Config>(params);

  auto arrive = [&](unsigned long long& barrier) {
    ptx::sync_warp();  // all lanes are done with what it guards
    if (lane == 0) ptx::barrier_arrive(ptx::shared_address(&barrier));
  };
  // Every consumer takes and releases every query, whether it has a tile for it or
  // not: arrivals then never run ahead of a phase.
  RingPlace<Config::queries> query_place;
  int query = -1;  // that is held; -1: none yet
  auto take_query = [&](int wanted) {
    for (; query < wanted; ++query) {
      if (query >= 0) {
        ptx::barrier_arrive(ptx::shared_address(&shared.query_free[query_place.stage]));
        query_place.advance();
      }
      ptx::barrier_wait(ptx::shared_address(&shared.query_full[query_place.stage]), query_place.parity);
    }
  };

  unsigned first_turn = 0;  // of the item's first tile, counted from the block's first
  int first_query = 0;
  RingPlace<Config::results> result;
  TaskReader<Config> tasks;
  for (DecodeTask task = tasks.take(shared), next; task.tiles >= 0; task = next) {
    tasks.give_back(shared);
    const Item& item = task.item;

    Accumulator<m_tiles, Config::v_head_dim> output;
    Softmax<m_tiles> softmax;
    output.clear();
    softmax.clear();
    // Tile t of an item is of share t % consumers, which is what its results are stored
    // and merged as; who takes a share depends on what the block did before.
    const int share = (warp + consumers - first_turn % consumers) % consumers;
    for (int t = share; t < task.tiles; t += consumers) {
      const unsigned turn = first_turn + t;
      const int stage = turn % stages, parity = turn / stages % 2;
#if KGEN_ROTATED_KEYS
      ptx::barrier_wait(ptx::shared_address(&shared.key_rotated[stage]), parity);
#else
      ptx::barrier_wait(ptx::shared_address(&shared.key_full[stage]), parity);
#endif
      const KeyTile tile = read_tile(shared.tile[stage], lane);
      take_query(ptx::shuffle(lane == 0 ? shared.tile_query[stage] : 0, 0));
      Accumulator<m_tiles, keys> scores;
      query_times_keys<ScoreElement, Config::head_dim>(scores, shared.query[query_place.stage], 0, shared.key[stage], lane);
      arrive(shared.key_free[stage]);
#if KGEN_SOFT_CAP
      cap_scores<Config>(scores, product_exponent<Config>(params));
#endif
      if (needs_mask<Config, keys>(tile, item.q_index, any_position)) {
        mask_scores(scores, 0, tile.begin, lane, [&](int row) { return visible_to_row<Config>(params, item, tile, row); });
      }
      softmax.update(scores, output, scale_log2);
      ptx::barrier_wait(ptx::shared_address(&shared.value_full[stage]), parity);
      if (const int tokens = tile.end - tile.begin; !Boxes<Config>::full(tokens)) {
        clear_missing_values<Config, 32>(shared.value[stage], tokens, lane);
        ptx::fence_async_shared();  // before the next copy to the stage
        ptx::sync_warp();
      }
      add_weights_times_values<Element>(output, scores, shared.value[stage], lane);
      arrive(shared.value_free[stage]);
    }

    first_turn += task.tiles;
    first_query += task.queries;
    take_query(first_query - 1);  // the last of the item

    softmax.finish();
    ptx::barrier_wait(ptx::shared_address(&shared.result_free[result.stage]), result.parity ^ 1);
    store_result<Config>(shared.result[result.stage][share], output, softmax, item.q_count * Config::group, lane);
    ptx::barrier_arrive(ptx::shared_address(&shared.result_full[result.stage]));
    next = tasks.take(shared);
    if (next.tiles < 0 && task.part.alone()) {  // nothing is left but to merge this, and all consumers can
      ptx::barrier_wait(ptx::shared_address(&shared.result_full[result.stage]), result.parity);
      merge_warps<Config, consumers>(params, item, task.part, {}, task.kv_head, item.q_count * Config::group, shared.result[result.stage], scale_log2, warp, consumers, lane);
    }
    result.advance();
  }
}

// One warp: what the consumers have of each part but a last one that they merge themselves.
template <class Config>
__device__ __forceinline__ void merge_for_decode(const AttendParams& params, DecodeSm90Shared<Config>& shared, int lane) {
  RingPlace<Config::results> result;
  TaskReader<Config> tasks;
  for (DecodeTask task = tasks.take(shared), next; task.tiles >= 0; task = next) {
    tasks.give_back(shared);
    next = tasks.take(shared);
    if (next.tiles < 0 && task.part.alone()) break;
    ptx::barrier_wait(ptx::shared_address(&shared.result_full[result.stage]), result.parity);
    merge_warps<Config, DecodeSm90Shared<Config>::consumers>(params, task.item, task.part, {shared.kept, Config::kept_levels}, task.kv_head,
                                                             task.item.q_count * Config::group, shared.result[result.stage], score_exponent<Config>(params), 0, 1, lane);
    ptx::barrier_arrive(ptx::shared_address(&shared.result_free[result.stage]));
    result.advance();
  }
}

template <class Config>
__device__ __forceinline__ void decode_sm90(const AttendParams& params) {
  static_assert(sizeof(DecodeSm90Shared<Config>) == Config::shared_bytes, "the plan's shared memory");
  using Shared = DecodeSm90Shared<Config>;
  Shared& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  const int lane = ptx::lane_index(), warp = ptx::warp_index();
  read_ahead(params, ptx::thread_index());
  if (ptx::thread_index() == 0) {
    for (int s = 0; s < Config::stages; ++s) {
      ptx::barrier_init(ptx::shared_address(&shared.key_full[s]), 1);
      ptx::barrier_init(ptx::shared_address(&shared.key_free[s]), 1);
#if KGEN_ROTATED_KEYS
      ptx::barrier_init(ptx::shared_address(&shared.key_rotated[s]), 32 * Config::rotators);
#endif
      ptx::barrier_init(ptx::shared_address(&shared.value_full[s]), 1);
      ptx::barrier_init(ptx::shared_address(&shared.value_free[s]), 1);
    }
    for (int q = 0; q < Config::queries; ++q) {
      ptx::barrier_init(ptx::shared_address(&shared.query_full[q]), 32);
      ptx::barrier_init(ptx::shared_address(&shared.query_free[q]), 32 * Shared::consumers);
    }
    for (int t = 0; t < Shared::tasks; ++t) {
      ptx::barrier_init(ptx::shared_address(&shared.task_full[t]), 1);
      ptx::barrier_init(ptx::shared_address(&shared.task_free[t]), 32 * (Shared::consumers + 1));
    }
    for (int r = 0; r < Config::results; ++r) {
      ptx::barrier_init(ptx::shared_address(&shared.result_full[r]), 32 * Shared::consumers);
      ptx::barrier_init(ptx::shared_address(&shared.result_free[r]), 32);
    }
    ptx::barrier_init_fence();
    acquire_maps(params);
  }
  ptx::sync_threads();
#if KGEN_ROTATED_KEYS
  // Three warpgroups leave a thread 168 registers. A consumer takes more where there are
  // masks, and where the consumers are a warpgroup it can have them.
  constexpr bool shares_registers = Config::warps == 12 && Shared::consumers == 4 && Config::min_blocks == 1;
#else
  constexpr bool shares_registers = false;
#endif
  if (warp < Shared::consumers) {
    if constexpr (shares_registers) ptx::registers_take<200>();
    consume_for_decode<Config>(params, shared, warp, lane);
  } else {
    if constexpr (shares_registers) ptx::registers_give<152>();
    if (warp == Config::warps - 1) {
      produce_for_decode<Config, Config::head_dim, true>(params, shared, shared.key, params.k_map, shared.key_full, shared.key_free, lane);
    } else if (warp == Config::warps - 2) {
      produce_for_decode<Config, Config::v_head_dim, false>(params, shared, shared.value, params.v_map, shared.value_full, shared.value_free, lane);
    } else if (warp == Config::warps - 3) {
      rotate_for_decode<Config>(params, shared, lane);
    } else if (warp == Config::warps - 4) {
      merge_for_decode<Config>(params, shared, lane);
#if KGEN_ROTATED_KEYS
    } else {
      rotate_keys_for_decode<Config>(params, shared, warp - Shared::consumers, lane);
#endif
    }
  }
}

}  // namespace kgen
