// The warps of an attend kernel of family sm90 that copy K and V.
#pragma once
#include "attend_shared.cuh"

namespace kgen {

// Copies keys when their stage is free, and publishes what the tile is.
template <class Config>
struct KeyCopier {
  const AttendParams& params;
  AttendSm90Shared<Config>& shared;
  int lane;
  RingPlace<Config::key_stages> place;

  __device__ __forceinline__ void copy(const TileOfItem& t) {
    const KeyTile& tile = t.copies.tile;
    if (t.begins_item()) keep_last_position<Config>(params, pointer<Item>(params.items)[t.item], lane, shared);
    wait_for_stage(shared.key_free[place.stage], place.parity ^ 1);
#if KGEN_CLUSTER
    // Who has given the stage back has read its note. But compute-sanitizer's racecheck follows no arrival at an address of the
    // cluster, and so has a barrier to see it by.
    wait_for_stage(shared.note_read[place.stage], place.parity ^ 1);
#endif
    const uint32_t full = ptx::shared_address(&shared.key_full[place.stage]);
    if (lane == 0) {
      shared.tile[place.stage] = tile, shared.note[place.stage] = TileNote::of<Config>(t, kept_last_position(shared));
      ptx::barrier_arrive_expecting(full, tile_bytes<Config, !exchanges_keys<Config>, false, Config::head_dim>(tile));
    }
    ptx::sync_warp();
    copy_tile<Config, !exchanges_keys<Config>, false>(shared.key[place.stage], params.k_map, full, of_keys<Config>(t.copies, lane), t.kv_head, params.kv_heads);
    place.advance();
  }
  __device__ __forceinline__ void end() { wait_for_all(shared.key_free, place); }
};

template <class Config>
struct ValueCopier {
  const AttendParams& params;
  AttendSm90Shared<Config>& shared;
  int lane;
  RingPlace<Config::stages> place;

  __device__ __forceinline__ void copy(const TileOfItem& t) {
    wait_for_stage(shared.value_free[place.stage], place.parity ^ 1);
    const uint32_t full = ptx::shared_address(&shared.value_full[place.stage]);
    if (lane == 0) ptx::barrier_arrive_expecting(full, tile_bytes<Config, true, true, Config::v_head_dim>(t.copies.tile));
    ptx::sync_warp();
    copy_tile<Config, true, true>(shared.value[place.stage], params.v_map, full, t.copies, t.kv_head, params.kv_heads);
    place.advance();
  }
  __device__ __forceinline__ void end() { wait_for_all(shared.value_free, place); }
};

#if KGEN_EXCHANGED_KEYS
// One warp: gives this block's share of each tile of keys, as soon as it is rotated, to the other block, whose barrier at the
// same place counts its bytes, as this one's does those of the other's. In parts: as one copy it takes extend over long
// contexts 2 percent longer, in parts of half a KiB up to 3 (H200).
template <class Config>
__device__ __forceinline__ void give_keys(const AttendParams& params, AttendSm90Shared<Config>& shared, int lane) {
  constexpr int bytes = OwnKeys<Config>::count * ColumnTile<Config::keys, Config::head_dim>::row_bytes;
  const int own = block_in_cluster(), other = 1 - own;
  RingPlace<Config::key_stages> place;
  WorkList<typename AttendSm90Shared<Config>::Works, false> works = {shared.works, lane};
  ptx::wait_for_previous_kernel();
  for (Work work = first_work(params); work.exists(); work = works.next(params)) {
    for (bool more = true; more; place.advance()) {
      ptx::barrier_wait(ptx::shared_address(&shared.own_rotated[place.stage]), place.parity);
      more = shared.note[place.stage].exists();
      const uint32_t rotated = ptx::shared_address(&shared.key_rotated[place.stage]);
      const uint32_t keys = ptx::shared_address(shared.key[place.stage].bytes) + own * bytes;
      ptx::sync_warp();
      if (!ptx::elect()) continue;
      ptx::barrier_arrive_expecting(rotated, more ? bytes : 0);
#pragma unroll 1
      for (uint32_t part = keys; more && part < keys + bytes; part += 1024) ptx::shared_copy_to(ptx::shared_of(part, other), part, 1024, ptx::shared_of(rotated, other));
    }
  }
}
#endif

// One warp for both. A tile's values are copied behind the keys of the next: consumers let
// go of a value stage in the middle of the softmax at whose end they let go of the stage of
// the keys after those, and never do copies that could start wait behind ones that can't.
template <class Config>
__device__ __forceinline__ void produce_keys_and_values(const AttendParams& params, AttendSm90Shared<Config>& shared, int lane) {
  KeyCopier<Config> keys = {params, shared, lane};
  ValueCopier<Config> values = {params, shared, lane};
  TileOfItem before;  // whose values are not copied yet
  before.copies.tile.run = -1;
  for_each_tile<Config, Config::key_stages, true>(params, WorkList<typename AttendSm90Shared<Config>::Works, true>{shared.works, lane}, [&](const TileOfItem& t) {
    keys.copy(t);
    if (before.copies.tile.exists()) values.copy(before);
    before = t;  // of an item the last is none
  });
  keys.end();
  values.end();
}

}  // namespace kgen
