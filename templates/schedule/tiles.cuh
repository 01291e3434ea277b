// The work lists of decode: a tile for each sequence of what is left of it, cut into parts, and items of
// several parts each. See Builder of the runtime's package schedule, whose steps these are.
#pragma once
#include "bundles.cuh"

namespace kgen {

constexpr int most_levels = 32;  // more than those of any number of parts
constexpr int product_rows = 64;  // of a tile, from which on its products take longer than its keys

// What is known of a tile, which a sequence has one of or none.
struct Tiles {
  // [sequences]
  int *keys, *unit;  // cut at every multiple of unit, from there on to the start of a page
  int *parts, *shared;  // partial slots of each query token, and before them those of shared decode
  int *per_item, *items;  // parts of an item; items, of which the last has what is left
  int *item, *slots, *scratch;  // where its own begin
  // [sequences][room]: of each part but the first
  int room;
  int *part_key, *part_run;  // where it begins, counted from the tile's first key; its first run
  // [segments + 1]: of all segments before
  int *key, *slot, *run;  // keys that are left to decode, slots of shared decode, runs
  // [items]
  int *weight, *owner, *place;

  __device__ Tiles(Scratch& scratch, int sequences, int segments, int part_room, int items_room) {
    int** const of_sequences[] = {&keys, &unit, &parts, &shared, &per_item, &items, &item, &slots, &this->scratch};
    for (int** list : of_sequences) *list = scratch.take(sequences);
    room = part_room;
    part_key = scratch.take(sequences * room), part_run = scratch.take(sequences * room);
    key = scratch.take(segments + 1), slot = scratch.take(segments + 1), run = scratch.take(segments + 1);
    weight = scratch.take(items_room), owner = scratch.take(items_room), place = scratch.take(items_room);
  }

  // Only whole groups of all of a token's partial results fold.
  __device__ bool fold(int q) const { return parts[q] > 1 && shared[q] == 0; }
  __device__ int key_of(int q, int part) const { return part == 0 ? 0 : part == parts[q] ? keys[q] : part_key[q * room + part]; }
  __device__ int run_of(const Sequence& s, int q, int part) const {
    return part == 0 ? run[s.segment_begin] : part == parts[q] ? run[s.segment_end] : part_run[q * room + part];
  }
  // The partial slots of each query token.
  __device__ int slots_of(int q) const {
    const int results = fold(q) && items[q] == 1 ? 0 : items[q] + shared[q];
    return parts[q] == 0 || results > 1 ? results : 0;
  }
};

// The results that wait for others while so many parts are folded.
__device__ __forceinline__ int fold_levels(int parts) { return ptx::bit_length(parts - 1); }

__device__ __forceinline__ int split_tokens(const ScheduleParams& params, int total) {
  if (params.split_tokens == 0) return nobody;
  if (params.max_items == 0) return params.split_tokens;
  const long long limit = static_cast<long long>(params.split_tokens) * params.max_items;
  if (total <= limit) return params.split_tokens;
  return static_cast<int>(min((total + limit - 1) / limit * params.split_tokens, static_cast<long long>(nobody)));
}

// Cuts the tiles.
template <class Config>
__device__ void cut_tiles(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles, const Tiles& tiles) {
  const int page = params.page_size, count = step.segment_count;
  auto keys_left = [&](int i) { return bundles.of_segment(chunks, i) < 0 ? step.segments[i].tokens : 0; };
  auto slots_shared = [&](int i) {
    const int b = bundles.of_segment(chunks, i);
    return b >= 0 && chunks.number[i] == bundles.first[b] ? bundles.parts[b] : 0;
  };
  block.sums_before(count + 1, [&](int i) { return i < count ? keys_left(i) : 0; }, tiles.key);
  block.sums_before(count + 1, [&](int i) { return i < count ? slots_shared(i) : 0; }, tiles.slot);
  block.each(step.sequence_count, [&](int q) {
    const Sequence s = step.sequences[q];
    const int keys = tiles.key[s.segment_end] - tiles.key[s.segment_begin], shared = tiles.slot[s.segment_end] - tiles.slot[s.segment_begin];
    tiles.keys[q] = keys, tiles.shared[q] = shared, tiles.unit[q] = split_tokens(params, keys);
    tiles.parts[q] = shared == 0 ? 1 : 0;  // though it sees nothing
  });
  block.sync();
  auto before_in_tile = [&](int i) { return tiles.key[i] - tiles.key[step.sequences[step.holder[i]].segment_begin]; };
  block.sums_before(count + 1, [&](int i) {
    if (i == count || bundles.of_segment(chunks, i) >= 0) return 0;
    const int q = step.holder[i], tokens = step.segments[i].tokens, before = before_in_tile(i), unit = tiles.unit[q];
    const int part = before / unit, last = tokens > 0 ? (before + last_page(tokens, page)) / unit : 0;
    if (before + tokens < tiles.keys[q]) return tokens > 0 ? 1 + last - part : 0;
    if (tokens == 0) {  // behind all keys, or there are none
      if (tiles.keys[q] == 0) tiles.parts[q] = 1;
      return 0;
    }
    tiles.parts[q] = 1 + last;
    return 1 + last - part;
  }, tiles.run);
}

// Writes the runs, and finds where parts begin. Of a step of many tokens no run says that it is read once.
template <class Config>
__device__ void list_runs(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles, const Tiles& tiles, bool many) {
  Run* const all = static_cast<Run*>(params.runs);
  const int page = params.page_size, ends = params.whole ? 0 : 1;
  block.each(step.segment_count, [&](int i) {
    const Segment segment = step.segments[i];
    const int tokens = segment.tokens;
    if (tokens == 0 || bundles.of_segment(chunks, i) >= 0) return;
    const int q = step.holder[i], unit = tiles.unit[q], keys = tiles.keys[q];
    const Sequence s = step.sequences[q];
    const int before = tiles.key[i] - tiles.key[s.segment_begin], cuts = tiles.run[i + 1] - tiles.run[i] - 1, part = before / unit;
    const int causal = segment.own && params.causal ? tokens - s.query_count : VISIBLE;
    const int once = !many && (segment.own || chunks.holds[chunks.number[i]] == 1);
#pragma unroll 1
    for (int c = 0, begin = 0; c <= cuts; ++c) {
      const int end = c < cuts ? next_page((part + c + 1) * unit - before, page) : tokens;
      // The next part begins there, or with the segment behind, or there is none.
      const int next = c < cuts ? part + c + 1 : (before + tokens) / unit, through = before + end, run = tiles.run[i] + c;
      const bool ends_part = c < cuts || next > part + cuts;
      if (ends_part && through < keys) tiles.part_key[q * tiles.room + next] = through, tiles.part_run[q * tiles.room + next] = run + 1;
      put(all + run, segment.page, begin, end, segment.offset, causal, once, ends_part || through == keys ? ends : 0, 0);
      begin = end;
    }
  });
  block.sync();
}

struct LevelSum {
  int items, rows, merged, heaviest;  // merged: rows of tiles of several items
};

// How many parts an item of this step has, a power of two: see Builder.partsPerItem.
template <class Config>
__device__ int parts_per_item(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Tiles& tiles, LevelSum* levels) {
  block.each(most_levels, [&](int i) { levels[i] = LevelSum{}; });
  long long keys = 0;
  int top = 0;
  block.each(step.sequence_count, [&](int q) {
    if (tiles.parts[q] > 0) keys += tiles.keys[q];
    if (tiles.fold(q)) top = max(top, fold_levels(tiles.parts[q]));
  });
  keys = block.sum(keys);
  top = block.maximum(top);
  const int groups = (step.sequence_count + 31) / 32;
  block.each_by_warp((top + 1) * groups, [&](int i) {  // a lane for each sequence
    const int level = i / groups, q = i % groups * 32 + block.lane, parts = q < step.sequence_count ? tiles.parts[q] : 0;
    LevelSum sum = {};
    if (parts > 0) {
      const int rows = min(params.rows, step.sequences[q].query_count * params.group), per_item = tiles.fold(q) ? 1 << level : 1;
      int before = 0;
#pragma unroll 1
      for (int end = per_item; end < parts; end += per_item) {
        const int key = tiles.part_key[q * tiles.room + end];
        sum.heaviest = max(sum.heaviest, key - before);
        before = key;
      }
      sum.heaviest = max(sum.heaviest, tiles.keys[q] - before);
      sum.items = (parts - 1) / per_item + 1, sum.rows = sum.items * rows, sum.merged = sum.items > 1 ? rows : 0;
    }
    sum.items = block.sum_through(sum.items), sum.rows = block.sum_through(sum.rows), sum.merged = block.sum_through(sum.merged);
    sum.heaviest = block.max_of_warp(sum.heaviest);
    if (block.lane == 31) {
      ptx::atomic_add(&levels[level].items, sum.items);
      ptx::atomic_add(&levels[level].rows, sum.rows);
      ptx::atomic_add(&levels[level].merged, sum.merged);
      ptx::atomic_max(&levels[level].heaviest, sum.heaviest);
    }
  });
  block.sync();
  // In fractions of a key, so that all is in whole numbers. (Decode has no tiles of two blocks.)
  const bool few = params.rows < product_rows;
  const long long blocks = params.at_once, key = 64 * blocks, idle = few ? 1 : 8, row = few ? 2 : 3, merged = few ? 6 : 3, launch = few ? 128 : 64;
  int best = 0;
  long long least = 0;
#pragma unroll 1
  for (int level = 0; level <= top; ++level) {
    const LevelSum s = levels[level];
    const long long most = s.heaviest, rounds = (s.items + blocks - 1) / blocks;
    const long long walk = max(key * most, 64 * keys + idle * blocks * most);
    long long cost = max(walk, rounds * (key * keys / max(1, s.items))) + 64 * (row * s.rows + merged * s.merged);
    if (s.merged > 0) cost += launch * key;
    if (level == 0 || cost < least) best = level, least = cost;
    if (least <= walk) break;  // more parts make the heaviest item no lighter
  }
  return 1 << best;
}

// Puts the parts into items, and gives the query tokens their slots. Returns how many items there are.
template <class Config>
__device__ int place_items(const ScheduleParams& params, const Block<Config>& block, const Step& step, Tiles& tiles, int per_item) {
  int* const slot_begin = static_cast<int*>(params.slot_begin);
  auto queries = [&](int q) { return step.sequences[q].query_count; };
  auto scratch_levels = [&](int parts) { return params.whole ? 0 : fold_levels(parts); };
  block.each(step.sequence_count, [&](int q) {
    tiles.per_item[q] = tiles.fold(q) ? per_item : 1;
    tiles.items[q] = tiles.parts[q] == 0 ? 0 : (tiles.parts[q] - 1) / tiles.per_item[q] + 1;
  });
  block.sync();
  const int item_count = block.sums_before(step.sequence_count, [&](int q) { return tiles.items[q]; }, tiles.item);
  const int slots = block.sums_before(step.sequence_count, [&](int q) { return queries(q) * tiles.slots_of(q); }, tiles.slots);
  int last = 0;
  block.each(step.sequence_count, [&](int q) {
    const Sequence s = step.sequences[q];
#pragma unroll 1
    for (int t = 0; t < s.query_count; ++t) slot_begin[s.query_begin + t] = tiles.slots[q] + t * tiles.slots_of(q);
    last = s.query_begin + s.query_count;
  });
  last = block.maximum(last);
  block.each(params.token_room + 1 - last, [&](int t) { slot_begin[last + t] = slots; });
  block.sums_before(step.sequence_count, [&](int q) {
    const int per = tiles.per_item[q], several = tiles.items[q];
    if (per == 1) return 0;
    return queries(q) * ((several - 1) * scratch_levels(per) + scratch_levels(tiles.parts[q] - (several - 1) * per));
  }, tiles.scratch);
  block.each(step.sequence_count, [&](int q) { tiles.scratch[q] += slots; });
  block.sync();
  return item_count;
}

// Writes the items, the heaviest first.
template <class Config>
__device__ void list_items(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Tiles& tiles, int count) {
  Item* const all = static_cast<Item*>(params.items);
  block.each_by_warp(step.sequence_count, [&](int q) {
    const int per_item = tiles.per_item[q], parts = tiles.parts[q];
#pragma unroll 1
    for (int i = block.lane; i < tiles.items[q]; i += 32) {
      const int at = tiles.item[q] + i;
      tiles.weight[at] = tiles.key_of(q, min(parts, (i + 1) * per_item)) - tiles.key_of(q, i * per_item);
      tiles.owner[at] = q, tiles.place[at] = at;
    }
  });
  block.sync();
  int most = 0, unsorted = 0;
  block.each(count, [&](int i) {
    most = max(most, tiles.weight[i]);
    if (i > 0 && tiles.weight[i] > tiles.weight[i - 1]) unsorted = 1;
  });
  most = block.maximum(most), unsorted = block.maximum(unsorted);
  // Backwards, for where keys are causal later items are heavier.
  if (unsorted) block.sort(count, most, [&](int i) { return tiles.weight[i]; }, true, [&](int i, int place) { tiles.place[i] = place; });
  block.each(params.item_room - count, [&](int i) { put(all + count + i, 0, 0, 0, 0, 0, 0, 0, 0); });
  block.each(count, [&](int at) {
    const int q = tiles.owner[at], i = at - tiles.item[q], per_item = tiles.per_item[q], shared = tiles.shared[q], stride = tiles.items[q] + shared;
    const Sequence s = step.sequences[q];
    const int begin = i * per_item, end = min(tiles.parts[q], begin + per_item);
    const int kept = params.whole || end - begin == 1 ? -1 : i * s.query_count * fold_levels(per_item);
    put(all + tiles.place[at],
        s.query_begin, s.query_count, 0, tiles.run_of(s, q, begin), tiles.run_of(s, q, end),
        stride == 1 ? FINAL : tiles.slots[q] + shared + i, stride == 1 ? 0 : stride, kept < 0 ? 0 : tiles.scratch[q] + kept);
  });
}

}  // namespace kgen
