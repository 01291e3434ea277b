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
  int *keys, *unit;      // cut at every multiple of unit, from there on to the start of a page
  int *parts, *run_count;
  int *shared;           // partial slots of each query token before those of the parts
  int *per_item, *items;  // parts of an item; items, of which the last has what is left
  int *runs, *item, *slots, *scratch;  // where its own begin
  // [sequences][room]: of each part but the first
  int room;
  int *part_key, *part_run;  // where it begins, counted from the tile's
  // [items]
  int *weight, *owner, *place;
  // [segments]
  int *holder, *slot;  // its sequence; of its chunk's bundle, the first of the slots of the sequence's first query token

  __device__ Tiles(Scratch& scratch, int sequences, int segments, int part_room, int items_room) {
    int** const lists[] = {&keys, &unit, &parts, &run_count, &shared, &per_item, &items, &runs, &item, &slots, &this->scratch};
    for (int** list : lists) *list = scratch.take(sequences);
    room = part_room;
    part_key = scratch.take(sequences * room), part_run = scratch.take(sequences * room);
    weight = scratch.take(items_room), owner = scratch.take(items_room), place = scratch.take(items_room);
    holder = scratch.take(segments), slot = scratch.take(segments);
  }

  // Only whole groups of all of a token's partial results fold.
  __device__ bool fold(int q) const { return parts[q] > 1 && shared[q] == 0; }
  __device__ int key_of(int q, int part) const { return part == 0 ? 0 : part == parts[q] ? keys[q] : part_key[q * room + part]; }
  __device__ int run_of(int q, int part) const { return part == 0 ? 0 : part == parts[q] ? run_count[q] : part_run[q * room + part]; }
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

// By a warp, f(segment, its index, whether it is left to decode, keys before it that are) of each segment of
// a sequence; one that is not left, as the lanes behind the last, brings an empty segment. Returns the keys of all.
template <class Config, class F>
__device__ int for_each_left(const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles, int q, F f) {
  const Sequence s = step.sequences[q];
  int keys = 0;
  for (int first = s.segment_begin; first < s.segment_end; first += 32) {
    const int i = first + block.lane;
    Segment segment = {};
    bool left = false;
    if (i < s.segment_end) {
      const int n = chunks.number[i];
      left = n < 0 || bundles.bundle[n] < 0;
      if (left) segment = step.segments[i];
    }
    const int through = block.sum_through(segment.tokens);
    f(segment, i, left, keys + through - segment.tokens);
    keys += ptx::shuffle(through, 31);
  }
  return keys;
}

// Cuts the tiles.
template <class Config>
__device__ void cut_tiles(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles, Tiles& tiles) {
  const int page = params.page_size;
  block.each_by_warp(step.sequence_count, [&](int q) {
    const Sequence s = step.sequences[q];
    int shared = 0, left_segments = 0;
    const int keys = for_each_left(block, step, chunks, bundles, q, [&](const Segment&, int i, bool left, int) {
      left_segments += ptx::count_bits(ptx::ballot(left));
      if (i >= s.segment_end) return;
      tiles.holder[i] = q;
      if (left) return;
      const int n = chunks.number[i], b = bundles.bundle[n];
      if (n == bundles.first[b]) shared += bundles.parts[b];
    });
    shared = static_cast<int>(block.sum_of_warp(static_cast<long long>(shared)));
    const int unit = split_tokens(params, keys);
    int runs = 0, cuts = 0;
    for_each_left(block, step, chunks, bundles, q, [&](const Segment& segment, int, bool, int before) {
      if (segment.tokens == 0) return;
      runs += 1 + cuts_inside(before, segment.tokens, unit, page);
      cuts = max(cuts, (before + last_page(segment.tokens, page)) / unit);
    });
    runs = static_cast<int>(block.sum_of_warp(static_cast<long long>(runs)));
    cuts = block.max_of_warp(cuts);
    if (block.lane != 0) return;
    const bool none = shared > 0 && left_segments == 0;
    tiles.keys[q] = keys, tiles.unit[q] = unit, tiles.shared[q] = shared, tiles.run_count[q] = runs;
    tiles.parts[q] = none ? 0 : 1 + cuts;
  });
  block.sync();
  block.sums_before(step.sequence_count, [&](int q) { return tiles.run_count[q]; }, [&](int q, int before) { tiles.runs[q] = before; });
  block.sync();
}

// Writes the runs, and finds where parts begin. Of a step of many tokens no run says that it is read once.
template <class Config>
__device__ void list_runs(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles, const Tiles& tiles, bool many) {
  Run* const all = static_cast<Run*>(params.runs);
  const int page = params.page_size, ends = params.whole ? 0 : 1;
  block.each_by_warp(step.sequence_count, [&](int q) {
    const Sequence s = step.sequences[q];
    const int unit = tiles.unit[q], keys = tiles.keys[q], first_run = tiles.runs[q];
    int* const part_key = tiles.part_key + q * tiles.room;
    int* const part_run = tiles.part_run + q * tiles.room;
    int listed = 0;  // runs of the segments before
    for_each_left(block, step, chunks, bundles, q, [&](const Segment& segment, int i, bool, int before) {
      const int tokens = segment.tokens, cuts = tokens > 0 ? cuts_inside(before, tokens, unit, page) : 0;
      const int through = block.sum_through(tokens > 0 ? 1 + cuts : 0);
      int run = listed + through - (1 + cuts);
      listed += ptx::shuffle(through, 31);
      if (tokens == 0) return;
      const int part = before / unit, causal = segment.own && params.causal ? tokens - s.query_count : VISIBLE;
      const int once = !many && (segment.own || chunks.holds[chunks.number[i]] == 1);
      for (int c = 0, begin = 0; c <= cuts; ++c, ++run) {
        const int end = c < cuts ? ((part + c + 1) * unit - before + page - 1) / page * page : tokens;
        // The next part begins there, or with the segment behind, or there is none.
        const int next = c < cuts ? part + c + 1 : (before + tokens) / unit, through_key = before + end;
        const bool ends_part = c < cuts || next > part + cuts;
        if (ends_part && through_key < keys) part_key[next] = through_key, part_run[next] = run + 1;
        Run& r = all[first_run + run];
        r.page = segment.page, r.begin = begin, r.end = end, r.offset = segment.offset;
        r.causal = causal, r.once = once, r.ends_part = ends_part || through_key == keys ? ends : 0;
        begin = end;
      }
    });
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
  block.each_by_warp(step.sequence_count, [&](int q) {
    const int parts = tiles.parts[q], rows = min(params.rows, step.sequences[q].query_count * params.group);
    if (parts == 0) return;
    for (int level = 0; level <= top; ++level) {
      const int per_item = tiles.fold(q) ? 1 << level : 1, items = (parts - 1) / per_item + 1;
      int heaviest = 0;
      for (int i = block.lane; i < items; i += 32) {
        heaviest = max(heaviest, tiles.key_of(q, min(parts, (i + 1) * per_item)) - tiles.key_of(q, i * per_item));
      }
      heaviest = block.max_of_warp(heaviest);
      if (block.lane == 0) {
        ptx::atomic_add(&levels[level].items, items);
        ptx::atomic_add(&levels[level].rows, items * rows);
        if (items > 1) ptx::atomic_add(&levels[level].merged, rows);
        ptx::atomic_max(&levels[level].heaviest, heaviest);
      }
    }
  });
  block.sync();
  // In fractions of a key, so that all is in whole numbers.
  const long long blocks = params.at_once, key = 64 * blocks, idle = params.rows < product_rows ? 1 : 8;
  int best = 0;
  long long least = 0;
  for (int level = 0; level <= top; ++level) {
    const LevelSum s = levels[level];
    const long long most = s.heaviest, rounds = (s.items + blocks - 1) / blocks;
    const long long walk = max(key * most, 64 * keys + idle * blocks * most);
    long long cost = max(walk, rounds * (key * keys / max(1, s.items))) + 64 * (2ll * s.rows + 6ll * s.merged);
    if (s.merged > 0) cost += 128 * key;
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
  auto items = [&](int q) { return tiles.items[q]; };
  block.each(step.sequence_count, [&](int q) {
    tiles.per_item[q] = tiles.fold(q) ? per_item : 1;
    tiles.items[q] = tiles.parts[q] == 0 ? 0 : (tiles.parts[q] - 1) / tiles.per_item[q] + 1;
  });
  block.sync();
  const int item_count = block.sums_before(step.sequence_count, items, [&](int q, int before) { tiles.item[q] = before; });
  int last = 0;
  const int slots = block.sums_before(step.sequence_count, [&](int q) { return queries(q) * tiles.slots_of(q); }, [&](int q, int before) {
    tiles.slots[q] = before;
    const Sequence s = step.sequences[q];
    for (int t = 0; t < s.query_count; ++t) slot_begin[s.query_begin + t] = before + t * tiles.slots_of(q);
    last = s.query_begin + s.query_count;
  });
  last = block.maximum(last);
  block.each(params.token_room + 1 - last, [&](int t) { slot_begin[last + t] = slots; });
  auto scratch_of = [&](int q) {
    const int per = tiles.per_item[q], several = tiles.items[q];
    if (per == 1) return 0;
    return queries(q) * ((several - 1) * scratch_levels(per) + scratch_levels(tiles.parts[q] - (several - 1) * per));
  };
  block.sums_before(step.sequence_count, scratch_of, [&](int q, int before) { tiles.scratch[q] = slots + before; });
  block.sync();
  return item_count;
}

// Writes the items, the heaviest first.
template <class Config>
__device__ void list_items(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Tiles& tiles, int count) {
  Item* const all = static_cast<Item*>(params.items);
  block.each_by_warp(step.sequence_count, [&](int q) {
    const int per_item = tiles.per_item[q], parts = tiles.parts[q];
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
  block.each(params.item_room - count, [&](int i) { all[count + i] = Item{}; });
  block.each(count, [&](int at) {
    const int q = tiles.owner[at], i = at - tiles.item[q], per_item = tiles.per_item[q], shared = tiles.shared[q], stride = tiles.items[q] + shared;
    const Sequence s = step.sequences[q];
    const int begin = i * per_item, end = min(tiles.parts[q], begin + per_item), run = tiles.runs[q];
    const int kept = params.whole || end - begin == 1 ? -1 : i * s.query_count * fold_levels(per_item);
    all[tiles.place[at]] = Item{
        s.query_begin, s.query_count, 0, run + tiles.run_of(q, begin), run + tiles.run_of(q, end),
        stride == 1 ? FINAL : tiles.slots[q] + shared + i, stride == 1 ? 0 : stride, kept < 0 ? 0 : tiles.scratch[q] + kept};
  });
}

}  // namespace kgen
