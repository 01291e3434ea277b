// The stages that tensor copies fill and warps empty (sm90).
#pragma once
#include "../ptx/sm90.cuh"
#include "item.cuh"

namespace kgen {

// A place in a ring of stages, and the parity of the ring's round.
template <int Stages>
struct RingPlace {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

// Starts bringing the work lists in. A block's first copy waits for an item, its run and
// that run's pages, one after the other; so all three are on their way from the start. A
// thread takes a sector of each.
__device__ __forceinline__ void read_ahead(const AttendParams& params, int thread) {
  constexpr int sector = 32;
  auto prefetch = [&](const void* list, int bytes) {
    if (thread * sector < bytes) ptx::prefetch(static_cast<const unsigned char*>(list) + thread * sector);
  };
  prefetch(params.items, params.item_count * static_cast<int>(sizeof(Item)));
  prefetch(params.runs, params.run_count * static_cast<int>(sizeof(Run)));
  prefetch(params.page_table, params.page_count * static_cast<int>(sizeof(int32_t)));
}

// Makes the tensor maps of this launch known to the block's copies, by one thread ahead of all
// of them: another map may have been where they are. (To prefetch them too takes 1 us longer: decode of
// 8k tokens, H200.)
__device__ __forceinline__ void acquire_maps(const AttendParams& params) {
  ptx::tensor_map_acquire(params.k_map);
  ptx::tensor_map_acquire(params.v_map);
}

// Who takes pieces of work: a block, or a cluster, whose blocks take the same ones.
#if KGEN_CLUSTER
constexpr int cluster_blocks = 2;
#else
constexpr int cluster_blocks = 1;
#endif
__device__ __forceinline__ int worker() { return ptx::block_x() / cluster_blocks; }
__device__ __forceinline__ int workers() { return ptx::grid_x() / cluster_blocks; }

// Arrives at a barrier, by one lane, or in a cluster at the same place in each block, by a lane each.
__device__ __forceinline__ void arrive_everywhere(unsigned long long& barrier, int lane) {
#if KGEN_CLUSTER
  if (lane < cluster_blocks) ptx::barrier_arrive_at(ptx::shared_of(ptx::shared_address(&barrier), lane));
#else
  if (lane == 0) ptx::barrier_arrive(ptx::shared_address(&barrier));
#endif
}

// A piece of work: an item, for one KV head.
struct Work {
  int item, kv_head;  // item -1: nothing is left

  __device__ __forceinline__ bool exists() const { return item >= 0; }
};

// The piece of a place in the order of the items. Items that hold no query tokens come
// last, where nothing is left.
__device__ __forceinline__ Work work_at(const AttendParams& params, int place) {
  const int item = place / params.kv_heads;
  if (item >= params.item_count || pointer<Item>(params.items)[item].q_count == 0) return {-1, 0};
  return {item, place % params.kv_heads};
}

// What each worker begins with.
__device__ __forceinline__ Work first_work(const AttendParams& params) { return work_at(params, worker()); }

#if KGEN_SHARED_DECODE
// A graph's launches have room for more items than most steps have, which may have none: workers
// with nothing to do are not to keep others from starting. The first waits for the kernel ahead
// even so, which the launch must not end before.
__device__ __forceinline__ bool leaves_at_once(const AttendParams& params, int worker) {
  return worker > 0 && !work_at(params, worker).exists();
}
#endif

// A worker's fixed share: one of every workers() pieces. As they come heaviest first, every
// other round goes backwards, and no worker has the heavier one of each round.
struct FixedShare {
  static constexpr int found_under = 1;  // see for_each_tile
  int lane, round = 0;

  // What follows first_work().
  __device__ __forceinline__ Work next(const AttendParams& params) {
    const int all = workers(), pieces = params.item_count * params.kv_heads;
    while (++round * all < pieces) {
      const int place = round * all + (round % 2 == 0 ? worker() : all - 1 - worker());
      // The last round may be short: its places in the middle, not at the end, then
      // have no work where it goes backwards.
      if (place < pieces) return work_at(params, place);
    }
    return {-1, 0};
  }
  __device__ __forceinline__ void end(const AttendParams&) const {}
  __device__ __forceinline__ void wait_for_all_readers() const {}
};

// Finds the worker's further pieces, by one warp: with a counter, each is the first that no
// worker has yet; without one, the worker's fixed share.
struct WorkFinder {
  FixedShare fixed;

  __device__ __forceinline__ Work next(const AttendParams& params, int lane) {
    if (params.counter == nullptr) return fixed.next(params);
    int taken = 0;
    if (lane == 0) taken = ptx::atomic_add_unordered(static_cast<uint32_t*>(params.counter), 1);
    return work_at(params, workers() + ptx::shuffle(taken, 0));
  }

  // When there is no next: the last worker to say so makes the counter zero again. The first
  // says it for those that left at once.
  __device__ __forceinline__ void end(const AttendParams& params, int lane) const {
    uint32_t* counter = static_cast<uint32_t*>(params.counter);
    if (counter == nullptr) return;
    int ended = 1;
#if KGEN_SHARED_DECODE
    if (worker() == 0) {
      int left = 0;
      for (int other = lane; other < workers(); other += 32) left += leaves_at_once(params, other);
      for (int distance = 1; distance < 32; distance *= 2) left += ptx::shuffle(left, lane ^ distance);
      ended += left;
    }
#endif
    if (lane == 0 && ptx::atomic_add(counter + 1, ended) + ended == workers()) counter[0] = counter[1] = 0;
  }
};

// The block's pieces on their way from the warp that finds them to so many others. Of a
// cluster the first block finds them: its finder fills the rings of both, when all readers of
// both, among them the other block's finder, have let go of the place.
template <int Readers>
struct WorkRing {
  static constexpr int places = 4, readers = cluster_blocks * (Readers + 1) - 1;
  Work work[places];
  unsigned long long full[places], free[places];

  __device__ __forceinline__ void init() {
    for (int i = 0; i < places; ++i) {
      ptx::barrier_init(ptx::shared_address(&full[i]), 1);
      ptx::barrier_init(ptx::shared_address(&free[i]), readers);
    }
  }
  __device__ __forceinline__ static bool found_here() { return block_in_cluster() == 0; }
  __device__ __forceinline__ void wait_for_readers(int turn) { ptx::barrier_wait(ptx::shared_address(&free[turn % places]), turn / places % 2 ^ 1); }
  // The finder's end, by one lane behind that wait.
  __device__ __forceinline__ void fill(int place, const Work& found) {
    work[place] = found;
    ptx::barrier_arrive(ptx::shared_address(&full[place]));
#if KGEN_CLUSTER
    const uint32_t full_there = ptx::shared_of(ptx::shared_address(&full[place]), 1);
    ptx::barrier_arrive_expecting_at(full_there, sizeof(Work));
    ptx::store_8_async(ptx::shared_of(ptx::shared_address(&work[place]), 1), make_int2(found.item, found.kv_head), full_there);
#endif
  }
  // A reader's.
  __device__ __forceinline__ void wait(int place, int parity) {
    ptx::barrier_wait(ptx::shared_address(&full[place]), parity);
  }
  __device__ __forceinline__ void release(int place) {
#if KGEN_CLUSTER
    ptx::barrier_arrive_at(ptx::shared_of(ptx::shared_address(&free[place]), 0));
#else
    ptx::barrier_arrive(ptx::shared_address(&free[place]));
#endif
  }
};

// One warp's end of the ring: that of the warp that finds the work, or of another.
template <class Ring, bool Finds>
struct WorkList {
  static constexpr int found_under = 0;  // all stages; see for_each_tile
  Ring& ring;
  int lane;
  WorkFinder finder;
  int turn = 0;  // one register, not a RingPlace's two

  // What follows first_work().
  __device__ __forceinline__ Work next(const AttendParams& params) {
    const int stage = turn % Ring::places, parity = turn / Ring::places % 2;
    Work work;
    if (Finds && Ring::found_here()) {
      work = finder.next(params, lane);
      ring.wait_for_readers(turn);
      ptx::sync_warp();  // see wait_for_stage
      if (lane == 0) ring.fill(stage, work);
    } else {
      ring.wait(stage, parity);
      // One lane reads it, the one that releases the place.
      work = {ptx::shuffle(lane == 0 ? ring.work[stage].item : 0, 0), ptx::shuffle(lane == 0 ? ring.work[stage].kv_head : 0, 0)};
      if (lane == 0) ring.release(stage);
    }
    ++turn;
    return work;
  }
  __device__ __forceinline__ void end(const AttendParams& params) const {
    if (Finds && Ring::found_here()) finder.end(params, lane);
  }
  // See wait_for_all.
  __device__ __forceinline__ void wait_for_all_readers() const {
#if KGEN_CLUSTER
    if constexpr (Finds) {
      if (!Ring::found_here()) return;
      for (int last = turn; last < turn + Ring::places; ++last) ring.wait_for_readers(last);
    }
#endif
  }
};

// The first tile of a piece of work, found ahead of its use.
struct WorkStart {
  Work work;
  int run_end, q_index;  // of its item, the latter of the block's first query token
  KeyTile tile;

  template <class Config>
  __device__ __forceinline__ static WorkStart of(const AttendParams& params, const Work& work) {
    WorkStart start = {work, 0, 0, {-1, 0, 0, 0, 0, 0}};
    if (work.exists()) {
      const Item& item = pointer<Item>(params.items)[work.item];
      start.run_end = item.run_end, start.q_index = item.q_index + own_tokens<Config>(item.q_count).first;
      start.tile = first_tile(params, item.run_begin, item.run_end);
    }
    return start;
  }
};

// The producer warp's wait for a stage. No lane may be left waiting when another
// goes on to fill the stage: by the time it looks, the stage could be full, emptied
// and in the next phase.
__device__ __forceinline__ void wait_for_stage(unsigned long long& free, int parity) {
  ptx::barrier_wait(ptx::shared_address(&free), parity);
  ptx::sync_warp();
}

// A block of a cluster may not end before the last arrival at one of its barriers: the
// producer waits until all stages are free again.
template <int Stages>
__device__ __forceinline__ void wait_for_all(unsigned long long (&free)[Stages], RingPlace<Stages> place) {
#if KGEN_CLUSTER
  for (int i = 0; i < Stages; ++i, place.advance()) wait_for_stage(free[place.stage], place.parity ^ 1);
#endif
}

// What a stage's tile is, to all lanes. One lane reads it, the one that releases the
// stage.
__device__ __forceinline__ KeyTile read_tile(const KeyTile& published, int lane) {
  KeyTile tile = {0, 0, 0, 0, 0, 0};
  if (lane == 0) tile = published;
  return {ptx::shuffle(tile.run, 0),  ptx::shuffle(tile.begin, 0),  ptx::shuffle(tile.end, 0),
          ptx::shuffle(tile.page, 0), ptx::shuffle(tile.offset, 0), ptx::shuffle(tile.causal, 0)};
}

// The keys of a tile that are this block's to copy, and to rotate: a cluster's blocks have equal shares.
template <class Config>
struct OwnKeys {
  static constexpr int count = Config::keys / cluster_blocks;

  __device__ static __forceinline__ int first() { return block_in_cluster() * count; }
};

// How many boxes of a tile's pages hold tokens. A box is a page's vectors of one head, or
// the tile's part of those of a larger page. Each block of a cluster copies its share of them.
template <class Config>
struct Boxes {
  static constexpr int rows = Config::page_size < OwnKeys<Config>::count ? Config::page_size : OwnKeys<Config>::count, own = OwnKeys<Config>::count / rows;
  static_assert(Config::keys / rows <= 32, "a lane for each box");
  static_assert(rows % 8 == 0, "whole blocks");

  __device__ static __forceinline__ int first() { return block_in_cluster() * own; }

  __device__ static __forceinline__ int of(int tokens) { return tokens < Config::keys ? (tokens + rows - 1) / rows : Config::keys / rows; }
  __device__ static __forceinline__ int of(const KeyTile& tile) { return of(tile.end - tile.begin); }
  // Whether these have no room for more.
  __device__ static __forceinline__ bool full(int tokens) { return tokens >= Config::keys || tokens % rows == 0; }
  __device__ static __forceinline__ int own_of(const KeyTile& tile) {
    const int left = of(tile) - first();
    return left < 0 ? 0 : left < own ? left : own;
  }
};

// What a tile's copies bring to the block: all of a cluster's, or its own. See copy_tile.
template <class Config, bool ToAll, bool Fills, int Dim>
__device__ __forceinline__ int tile_bytes(const KeyTile& tile) {
  static_assert(ToAll || !Fills, "values are copied to all");
  if (Fills) return Config::keys * (Dim * 2);
  return (ToAll ? Boxes<Config>::of(tile) : Boxes<Config>::own_of(tile)) * Boxes<Config>::rows * (Dim * 2);
}

constexpr int no_page = -1;  // outside of the cache's tensor, where all elements are zeros

// A tile's copies, as they are looked up ahead of their start, so that this never waits
// for the lists: lane i has the page of the i-th box.
struct TileCopies {
  KeyTile tile;
  int page;              // of this lane's box
  bool once, ends_part;  // see Run
};

template <class Config>
__device__ __forceinline__ TileCopies look_up(const AttendParams& params, const KeyTile& tile, int lane) {
  const int32_t* page_table = pointer<int32_t>(params.page_table);
  const int page = lane < Boxes<Config>::of(tile) ? page_table[tile.page + (tile.begin + lane * Boxes<Config>::rows) / Config::page_size] : no_page;
  if (!tile.exists()) return {tile, page, false, false};
  const Run& run = pointer<Run>(params.runs)[tile.run];
  return {tile, page, run.once != 0, run.ends_part != 0 && tile.begin + Config::keys >= tile.end};
}

// The copies of a tile's keys. Those that were rotated ahead have pages of their own, one for
// each entry of the page table.
template <class Config>
__device__ __forceinline__ TileCopies of_keys(TileCopies copies, int lane) {
#if KGEN_KEYS_AHEAD
  copies.page = copies.tile.page + (copies.tile.begin + lane * Boxes<Config>::rows) / Config::page_size;
#endif
  return copies;
}

// Starts a tile's copies of K or V, Dim elements a token, to all blocks of a cluster or to this
// one. Rows of boxes that hold no tokens are left as they are, of K, or, where it Fills, of V become zeros. All lanes.
template <class Config, bool ToAll, bool Fills, int Dim>
__device__ __forceinline__ void copy_tile(ColumnTile<Config::keys, Dim>& target, const void* map, uint32_t full, const TileCopies& copies, int kv_head,
                                          int kv_heads) {
  using Tile = ColumnTile<Config::keys, Dim>;
  const uint32_t bytes = ptx::shared_address(target.bytes);
  const KeyTile& tile = copies.tile;
  const int boxes = Boxes<Config>::of(tile), place = tile.begin % Config::page_size;
  // What is read once would only push out what is read again, and, where the cache is
  // full of lines that were written, each line it takes costs a write to memory.
  const uint64_t policy = copies.once ? ptx::evict_first() : ptx::evict_unchanged();
  constexpr int most = Boxes<Config>::own;
  const int first = Boxes<Config>::first();
  int pages[most];
#pragma unroll
  for (int i = 0; i < most; ++i) pages[i] = ptx::shuffle(copies.page, first + i);
  if (!ptx::elect()) return;
  // Of K a branch a box, for whole tiles too: copies that start with none between them come twice
  // as fast, and what runs beside them takes 1 percent longer (H200; half as fast is worse).
#pragma unroll
  for (int i = 0; i < most; ++i) {
    const int box = first + i;
    if (!Fills && box >= boxes) break;
    // The map's dimensions: see the runtime's CacheShape.
#if KGEN_HEAD_MAJOR
    const int column = 0, page = pages[i] * kv_heads + kv_head;
#else
    const int column = kv_head * Tile::columns, page = pages[i];
#endif
    const uint32_t target_box = bytes + box * Boxes<Config>::rows * Tile::row_bytes;
    const int block = (place + (Config::page_size > Boxes<Config>::rows ? box * Boxes<Config>::rows : 0)) / 8;
#if KGEN_CLUSTER
    if constexpr (ToAll) {
      ptx::tensor_copy_to_both(target_box, map, full, policy, 0, 0, column, block, page);
      continue;
    }
#endif
    ptx::tensor_copy(target_box, map, full, policy, 0, 0, column, block, page);
  }
}

// A tile of an item whose keys, or values, are to be copied.
struct TileOfItem {
  TileCopies copies;
  int item, kv_head, q_index;
  bool begins_part;  // and is not the item's first
  int base_before;   // rotation_base of the tile before; no_base: this is the item's first

  __device__ __forceinline__ bool begins_item() const { return base_before == no_base; }
};

// One warp's way through the block's work, to copy it to so many stages: item after item,
// tile after tile, and with Ends, after an item's last, one that does not exist.
template <class Config, int Stages, bool Ends, class Works, class Visit>
__device__ __forceinline__ void for_each_tile(const AttendParams& params, Works works, Visit visit) {
  // What comes next takes some reads to find. They are under copies that fill so many stages.
  constexpr int found_under = Works::found_under > 0 ? Works::found_under : Stages;
  for (WorkStart now = WorkStart::of<Config>(params, first_work(params)), next; now.work.exists(); now = next) {
    TileCopies coming = look_up<Config>(params, now.tile, works.lane);
    ptx::wait_for_previous_kernel();  // the lists are not its work; it returns at once but before the first copy
    int copied = 0, base_before = no_base;  // of the item
    bool begins_part = false;
    while (Ends || coming.tile.exists()) {
      const TileOfItem t = {coming, now.work.item, now.work.kv_head, now.q_index, begins_part, base_before};
      coming = look_up<Config>(params, tile_after<Config::keys>(params, t.copies.tile, now.run_end), works.lane);
      visit(t);
      if (!t.copies.tile.exists()) break;
      base_before = rotation_base(t.copies.tile), begins_part = t.copies.ends_part;
      if (++copied == found_under) next = WorkStart::of<Config>(params, works.next(params));
    }
    if (copied < found_under) next = WorkStart::of<Config>(params, works.next(params));
  }
  ptx::wait_for_previous_kernel();  // where there was no work
  works.end(params);
  ptx::let_next_kernel_start();  // merge; earlier, its waiting blocks would only be in the way
  works.wait_for_all_readers();
}

// Zeros the rows of a tile of values past the first `tokens`, the end of their run, that are of the same box as the last
// of these: a zero weight times what a page held before could be NaN.
template <class Config, int Threads, int Dim>
__device__ __forceinline__ void clear_missing_values(ColumnTile<Config::keys, Dim>& values, int tokens, int thread) {
  constexpr int chunks = Dim / chunk_elements;
  const int end = Boxes<Config>::of(tokens) * Boxes<Config>::rows;
  for (int i = tokens * chunks + thread; i < end * chunks; i += Threads) {
    ptx::store_16(values.bytes + values.byte(i / chunks, i % chunks), make_uint4(0, 0, 0, 0));
  }
}

}  // namespace kgen
