// The warps of an attend kernel of family sm90 that rotate queries and raw keys.
#pragma once
#include "attend_shared.cuh"

namespace kgen {

template <class Config>
constexpr int rotator_threads = 32 * Config::rotators;

// Of queries, a rotator takes as many heads at a time as it has registers for, and keeps their angles where it has any for these: beside
// outputs of 256 dimensions a warpgroup of rotators has 72.
#if KGEN_INTERLEAVED
constexpr bool interleaved_pairs = true;
#else
constexpr bool interleaved_pairs = false;
#endif
template <class Config>
constexpr int rotated_heads = Config::v_head_dim <= 128  ? (rotates_apart<Config> && Config::group > 4 ? 2 : 4)
                              : rotates_apart<Config> && !interleaved_pairs && Config::rotary_dim == Config::head_dim && Config::group % 4 == 0 ? 4 : 2;
template <class Config>
constexpr bool rotators_keep_angles = !rotates_apart<Config> || Config::v_head_dim <= 128;

#if KGEN_ALIGNED_QUERIES
template <class Config, int Threads>
__device__ __forceinline__ void align_queries(const AlignedQueries<Config>& aligned, const AttendParams& params, const Item& item, int kv_head, int thread) {
  const QueryRows<Config> rows = query_rows<Config>(params, item, kv_head);
  rotate_query_to<Config, Threads, 4>(aligned, rows, pointer<float>(params.rope), rows.positions[0], query_factor<Config>(params), thread);
}

// The named barrier of the rotators and the consumers, who align a block's first queries.
constexpr int first_aligned_barrier = 6;
template <class Config>
constexpr int first_align_threads = 2 * Config::rows + rotator_threads<Config>;
#endif

#if KGEN_ROTATED_KEYS
// Each tile of keys, between its copy and its use; and an item's queries ahead of its
// keys, or of the run's that they are rotated for. The first of all are the consumers' own
// work.
template <class Config>
__device__ __forceinline__ void rotate_queries_and_keys(const AttendParams& params, AttendSm90Shared<Config>& shared, int thread) {
  ptx::wait_for_previous_kernel();
  const float* rope = pointer<float>(params.rope);
  const int lane = thread % 32;
  KeyRotator<Config, Config::rotators, !fp16_keys<Config>> rotator = {rope, shared.high, thread / 32};
  RingPlace<Config::queries> query;
  RingPlace<Config::key_stages> key;
  bool first = true;
  auto publish_queries = [&](const Work& work, const KeyTile& tile) {
    ptx::barrier_wait(ptx::shared_address(&shared.query_free[query.stage][0]), query.parity ^ 1);
    if (!first && tile.exists()) {
      // The thread's place is found anew: kept from item to item it would be spilled.
      constexpr int heads = Config::group % 4 == 0 ? 4 : 1;  // two or three spill
      rotate_query<Config, rotator_threads<Config>, heads>(query_rows<Config>(params, pointer<Item>(params.items)[work.item], work.kv_head), rope,
                                                       rotation_base(tile), query_factor<Config>(params), ptx::here(ptx::thread_index()) - (Config::threads - rotator_threads<Config>), shared.query[query.stage]);
      ptx::fence_async_shared();
    }
    first = false;
    ptx::barrier_arrive(ptx::shared_address(&shared.query_full[query.stage][0]));
    query.advance();
    rotator.load_low_terms();  // anew: queries take the registers
  };
  auto wait_for_keys = [&]() { ptx::barrier_wait(ptx::shared_address(&shared.key_full[key.stage]), key.parity); };
  auto publish_keys = [&]() {
    ptx::fence_async_shared();
    ptx::sync_warp();
#if KGEN_EXCHANGED_KEYS
    const uint32_t rotated = ptx::shared_address(&shared.own_rotated[key.stage]);
#else
    const uint32_t rotated = ptx::shared_address(&shared.key_rotated[key.stage]);
#endif
    if (lane == 0) ptx::barrier_arrive(rotated);
    key.advance();
  };
  WorkList<typename AttendSm90Shared<Config>::Works, false> works = {shared.works, lane};
  for (Work work = first_work(params); work.exists(); work = works.next(params)) {
    const Item& item = pointer<Item>(params.items)[work.item];
    KeyTile tile = first_tile(params, item.run_begin, item.run_end);
    rotator.fetch(tile);
    publish_queries(work, tile);
    int base = rotation_base(tile);  // that the queries are rotated for
    while (tile.exists()) {
      const KeyTile now = tile;
      tile = tile_after<Config::keys>(params, tile, item.run_end);
      rotator.publish();
      rotator.rotate(shared.key[key.stage], first_key_position(now), tile, wait_for_keys);
      publish_keys();
      // Behind the keys: consumers let go of the queries before only when they have these.
      if (needs_rotation(base, now)) publish_queries(work, now);
      base = rotation_base(now);
    }
    wait_for_keys();  // the tile that does not exist
    publish_keys();
  }
}
#else
#if KGEN_ALIGNED_QUERIES
// Publishes each item's queries, once for each run that needs a rotation of its own. To align
// the first of all is the consumers' own work.
template <class Config>
__device__ __forceinline__ void rotate_queries(const AttendParams& params, AttendSm90Shared<Config>& shared, int thread) {
  ptx::wait_for_previous_kernel();
  static_assert(rotator_threads<Config> == aligned_rotator_threads, "a warp for sixteen rows of each warpgroup's");
  RingPlace<Config::queries> query;
  auto publish = [&](int part) { ptx::barrier_arrive(ptx::shared_address(&shared.query_full[query.stage][part])); };
  auto wait_for_place = [&](int part) { ptx::barrier_wait(ptx::shared_address(&shared.query_free[query.stage][part]), query.parity ^ 1); };
  WorkList<typename AttendSm90Shared<Config>::Works, false> works = {shared.works, thread % 32};
  AlignedRotator<Config> rotator(shared.rotation, thread);
  bool first = true;
  for (Work work = first_work(params); work.exists(); work = works.next(params)) {
    const Item& item = pointer<Item>(params.items)[work.item];
    KeyTile tile = first_tile(params, item.run_begin, item.run_end);
    if (!tile.exists()) {  // a place for the outputs
      for (int part = 0; part < shared.query_parts; ++part) wait_for_place(part), publish(part);
      query.advance();
      first = false;
      continue;
    }
    const PlaceInUse place = {first ? nullptr : shared.query_free[query.stage], query.parity ^ 1};
    const auto aligned = AlignedQueries<Config>::of(params, item, work.kv_head, shared.query[query.stage], place);
    const int position = query_rows<Config>(params, item, work.kv_head).positions[0];
    auto turn = [&]() { rotator.turn_to(pointer<float>(params.rope), position - rotation_base(tile), rotation_factor<Config>(params)); };
    turn();
    if (first) {
      ptx::named_barrier_sync(first_aligned_barrier, first_align_threads<Config>);
    } else {
      align_queries<Config, aligned_rotator_threads>(aligned, params, item, work.kv_head, ptx::here(thread));
      rotators_meet();  // all that is aligned is there
    }
    rotator.take(aligned);
    first = false;
    for (;;) {
      rotator.rotate(shared.query[query.stage], wait_for_place, publish);
      query.advance();
      tile = next_rotation(params, tile, item.run_end);  // not sooner: it waits for reads, and consumers for the first queries
      if (!tile.exists()) break;
      turn();
    }
  }
}
#else
// Publishes each item's queries, once for each run that needs a rotation of its own.
// The first of all are the consumers' own work.
template <class Config>
__device__ __forceinline__ void rotate_queries(const AttendParams& params, AttendSm90Shared<Config>& shared, int thread) {
  ptx::wait_for_previous_kernel();
  RingPlace<Config::queries> query;
  constexpr int parts = AttendSm90Shared<Config>::query_parts, part_rows = Config::rows / parts;
  using Tile = ColumnTile<Config::rows, Config::head_dim>;
  auto target = [&](int stage) { return QueryTile<Config, Tile, rotators_keep_angles<Config>>{shared.query[stage]}; };
  WorkList<typename AttendSm90Shared<Config>::Works, false> works = {shared.works, thread % 32};
  bool first = true;
  for (Work work = first_work(params); work.exists(); work = works.next(params)) {
    const Item& item = pointer<Item>(params.items)[work.item];
    const QueryRows<Config> rows = query_rows<Config>(params, item, work.kv_head);
    KeyTile tile = first_tile(params, item.run_begin, item.run_end);
    for (;;) {
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        ptx::barrier_wait(ptx::shared_address(&shared.query_free[query.stage][part]), query.parity ^ 1);
        if (!first && tile.exists()) {
          rotate_query_to<Config, rotator_threads<Config>, rotated_heads<Config>, part_rows>(target(query.stage), rows, pointer<float>(params.rope), rotation_base(tile),
                                                                                             query_factor<Config>(params), thread, part * part_rows);
          ptx::fence_async_shared();
        }
        ptx::barrier_arrive(ptx::shared_address(&shared.query_full[query.stage][part]));
      }
      first = false;
      query.advance();
      if (!tile.exists()) break;  // an item without keys: a place for its outputs
      tile = next_rotation(params, tile, item.run_end);
      if (!tile.exists()) break;
    }
  }
}
#endif
#endif

// A warpgroup's own rows, for runs of the given base.
template <class Config>
__device__ __forceinline__ void rotate_own_queries(const AttendParams& params, AttendSm90Shared<Config>& shared, const Item& item, int kv_head, int warpgroup, int base) {
  constexpr int rows = 64, threads = 128;
  using Tile = ColumnTile<Config::rows, Config::head_dim>;
  auto meet = [&]() { ptx::named_barrier_sync(8 + warpgroup, threads); };
  meet();  // all are done with those before
  rotate_query_to<Config, threads, 2, rows>(QueryTile<Config, Tile, false>{shared.query[0]}, query_rows<Config>(params, item, kv_head), pointer<float>(params.rope), base,
                                            query_factor<Config>(params), ptx::thread_index() % threads, warpgroup * rows);
  ptx::fence_async_shared();
  meet();
}

// Brings an item's queries, and the angles by which they will be rotated, near: by the helpers that copy nothing,
// while the block attends to the item before.
template <class Config>
__device__ __forceinline__ void prefetch_queries(const AttendParams& params, AttendSm90Shared<Config>& shared, int thread) {
  constexpr int threads = 32 * query_prefetchers<Config>, line = 128;
  constexpr int token_bytes = Config::group * Config::head_dim * 2, angle_bytes = Config::rotary_dim / 2 * static_cast<int>(sizeof(float2));
  auto prefetch = [&](const void* from, int bytes) {
    for (int i = 0; i < bytes; i += line) ptx::prefetch_near(static_cast<const unsigned char*>(from) + i);
  };
  ptx::wait_for_previous_kernel();
  WorkList<typename AttendSm90Shared<Config>::Works, false> works = {shared.works, thread % 32};
  Work work = first_work(params);  // whose queries are wanted at once
  while (work.exists()) {
    work = works.next(params);
    if (!work.exists()) break;
    const Item& item = pointer<Item>(params.items)[work.item];
    const KeyTile tile = first_tile(params, item.run_begin, item.run_end);
    const QueryRows<Config> rows = query_rows<Config>(params, item, work.kv_head);
    for (int token = thread; tile.exists() && token * Config::group < rows.count; token += threads) {
      prefetch(rows.source(token), token_bytes);
#if KGEN_ROPE
      const AngleRows angles = angle_rows<Config>(pointer<float>(params.rope), rows.rotation(token, rotation_base(tile)));
      prefetch(angles.low, angle_bytes), prefetch(angles.high, angle_bytes);
#endif
    }
  }
}

// The block's first queries: nothing can start before they are there, and the
// consumers are idle until then, so all of them take a share.
template <class Config, int Threads>
__device__ __forceinline__ void rotate_first_queries(const AttendParams& params, AttendSm90Shared<Config>& shared, int thread) {
  const Work work = first_work(params);
  if (!work.exists()) return;
  const Item& item = pointer<Item>(params.items)[work.item];
  const KeyTile tile = first_tile(params, item.run_begin, item.run_end);
  if (!tile.exists()) return;
#if KGEN_ALIGNED_QUERIES
  align_queries<Config, Threads>(AlignedQueries<Config>::of(params, item, work.kv_head, shared.query[0], {}), params, item, work.kv_head, thread);
  ptx::named_barrier_arrive(first_aligned_barrier, first_align_threads<Config>);
#else
  rotate_query<Config, Threads, 4>(query_rows<Config>(params, item, work.kv_head), pointer<float>(params.rope), rotation_base(tile),
                                   query_factor<Config>(params), thread, shared.query[0]);
  ptx::fence_async_shared();
  ptx::named_barrier_sync(1, Threads);
#endif
}

}  // namespace kgen
