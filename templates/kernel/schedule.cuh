// schedule: the work lists of a decode step, from what its sequences hold. Package schedule of the
// runtime says what the lists are, and its builders make the same, to the bit. One block makes
// them, as most of it is to wait for one another.
#pragma once
#include "../schedule/tiles.cuh"

namespace kgen {

struct ScheduleShared {
  BlockNotes notes;
  UnitSearch search;
  LevelSum levels[most_levels];
};

// The query tokens that hold what is in bundles, each with its offset and the slots of its results.
template <class Config>
__device__ void list_members(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles, const Tiles& tiles) {
  Member* const members = static_cast<Member*>(params.members);
  int* const offsets = static_cast<int*>(params.member_offsets);
  auto bundle_of = [&](int i) {
    const int n = chunks.number[i];
    return n >= 0 ? bundles.bundle[n] : -1;
  };
  auto begins = [&](int i, int b) { return b >= 0 && chunks.number[i] == bundles.first[b]; };
  block.each_by_warp(step.sequence_count, [&](int q) {
    const Sequence s = step.sequences[q];
    int slot = tiles.slots[q];
    for (int first = s.segment_begin; first < s.segment_end; first += 32) {
      const int i = first + block.lane, b = i < s.segment_end ? bundle_of(i) : -1;
      const int parts = b >= 0 && begins(i, b) ? bundles.parts[b] : 0, through = block.sum_through(parts);
      if (i < s.segment_end) tiles.slot[i] = slot + through - parts;
      slot += ptx::shuffle(through, 31);
    }
  });
  auto queries = [&](int i) { return step.sequences[tiles.holder[i]].query_count; };
  rank_holds(block, step, chunks, bundles, queries, params.rows / params.group, [&](int i, int rank) {
    const int b = bundle_of(i), q = tiles.holder[i], all = chunks.queries[bundles.first[b]], slots = tiles.slots_of(q);
    const Sequence s = step.sequences[q];
    int* const to = offsets + bundles.offsets[b] + (chunks.number[i] - bundles.first[b]) * all + rank;
    for (int t = 0; t < s.query_count; ++t) to[t] = step.segments[i].offset;
    if (!begins(i, b)) return;
    for (int part = 0; part < bundles.parts[b]; ++part) {
      for (int t = 0; t < s.query_count; ++t) {
        members[bundles.members[b] + part * all + rank + t] = Member{s.query_begin + t, tiles.slot[i] + t * slots + part};
      }
    }
  });
}

template <class Config>
__device__ __forceinline__ void schedule(const ScheduleParams& params) {
  ScheduleShared& shared = *reinterpret_cast<ScheduleShared*>(ptx::dynamic_shared());
  static_assert(sizeof(ScheduleShared) <= Config::shared_bytes, "shared memory");
  ptx::wait_for_previous_kernel();
  const Block<Config> block(shared.notes);
  const Step step = {pointer<Sequence>(params.sequences), pointer<Segment>(params.segments), pointer<int>(params.counts)[0], pointer<int>(params.counts)[1]};
  Scratch scratch = {static_cast<int*>(params.scratch)};
  Chunks chunks(scratch, params.segment_room);
  Bundles bundles(scratch, params.segment_room, params.shared_item_room, Block<Config>::warps);
  Tiles tiles(scratch, params.sequence_room, params.segment_room, params.part_room, params.item_room);

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
