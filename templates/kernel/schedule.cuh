// schedule: the work lists of a decode step, from what its sequences hold. Package schedule of the
// runtime says what the lists are, and its builders make the same, to the bit. One block makes
// them, as most of it is to wait for one another.
#pragma once
#include "../schedule/tiles.cuh"

namespace kgen {

// Where the lists are is in shared memory, too: there are more of them than registers.
struct ScheduleShared {
  BlockNotes notes;
  UnitSearch search;
  LevelSum levels[most_levels];
  alignas(8) unsigned char chunks[sizeof(Chunks)], bundles[sizeof(Bundles)], tiles[sizeof(Tiles)];
};

// The query tokens that hold what is in bundles, each with its offset and the slots of its results.
template <class Config>
__device__ void list_members(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles, const Tiles& tiles) {
  Member* const members = static_cast<Member*>(params.members);
  int* const offsets = static_cast<int*>(params.member_offsets);
  auto column = [&](int i) { return bundles.of_segment(chunks, i) >= 0 ? bundles.column[chunks.number[i]] : -1; };
  auto queries = [&](int i) { return step.sequences[step.holder[i]].query_count; };
  block.rank(step.segment_count, bundles.columns, bundles.held, bundles.held + Block<Config>::warps * bundles.columns, column, queries, params.rows / params.group, [&](int i, int before) {
    const int b = bundles.of_segment(chunks, i), q = step.holder[i], all = chunks.queries[bundles.first[b]], slots = tiles.slots_of(q);
    const Sequence s = step.sequences[q];
    int* const to = offsets + bundles.offsets[b] + (chunks.number[i] - bundles.first[b]) * all + before;
#pragma unroll 1
    for (int t = 0; t < s.query_count; ++t) to[t] = step.segments[i].offset;
    if (chunks.number[i] != bundles.first[b]) return;
    const int slot = tiles.slots[q] + tiles.slot[i] - tiles.slot[s.segment_begin];
#pragma unroll 1
    for (int part = 0; part < bundles.parts[b]; ++part) {
#pragma unroll 1
      for (int t = 0; t < s.query_count; ++t) members[bundles.members[b] + part * all + before + t] = Member{s.query_begin + t, slot + t * slots + part};
    }
  });
}

template <class Config>
__device__ __forceinline__ void schedule(const ScheduleParams& params) {
  ScheduleShared& shared = *reinterpret_cast<ScheduleShared*>(ptx::dynamic_shared());
  static_assert(sizeof(ScheduleShared) <= Config::shared_bytes, "shared memory");
  ptx::wait_for_previous_kernel();
  const Block<Config> block(shared.notes);
  Scratch scratch = {static_cast<int*>(params.scratch)};
  const Step step = {pointer<Sequence>(params.sequences), pointer<Segment>(params.segments), pointer<int>(params.counts)[0], pointer<int>(params.counts)[1], scratch.take(params.segment_room)};
  Chunks& chunks = *reinterpret_cast<Chunks*>(shared.chunks);
  Bundles& bundles = *reinterpret_cast<Bundles*>(shared.bundles);
  Tiles& tiles = *reinterpret_cast<Tiles*>(shared.tiles);
  if (block.thread == 0) {
    chunks = Chunks(scratch, params.segment_room);
    bundles = Bundles(scratch, params.segment_room, params.shared_item_room, Block<Config>::warps);
    tiles = Tiles(scratch, params.sequence_room, params.segment_room, params.part_room, params.item_room);
  }
  block.sync();

  find_chunks(block, step, chunks);
  if (params.shared_items != nullptr) {
    find_bundles(params, block, step, chunks, bundles);
    if (bundles.count > 0) cut_bundles(params, block, step, chunks, bundles, shared.search);
    place_bundles(params, block, step, chunks, bundles);
    list_bundles(params, block, step, chunks, bundles);
    if (block.thread == 0) *static_cast<long long*>(params.spared) += bundles.spared;
  } else {
    block.each(chunks.count, [&](int n) { bundles.bundle[n] = -1; });
    block.sync();
  }

  cut_tiles(params, block, step, chunks, bundles, tiles);
  const long long own_tokens = block.total(step.segment_count, [&](int i) { return step.segments[i].own ? step.segments[i].tokens : 0; });
  const long long tokens = own_tokens + block.total(chunks.count, [&](int n) { return step.segments[chunks.first[n]].tokens; });
  list_runs(params, block, step, chunks, bundles, tiles, params.once_tokens > 0 && tokens > params.once_tokens);
  const int per_item = params.parts_per_item > 0 ? params.parts_per_item : parts_per_item(params, block, step, tiles, shared.levels);
  const int items = place_items(params, block, step, tiles, per_item);
  list_items(params, block, step, tiles, items);
  if (bundles.count > 0) list_members(params, block, step, chunks, bundles, tiles);
}

}  // namespace kgen
