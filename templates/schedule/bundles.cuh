// What shared decode reads: bundles of chunks, cut into parts, and its work lists. See SharedBuilder
// of the runtime's package schedule, whose steps these are, and in whose words they are told.
#pragma once
#include "chunks.cuh"

namespace kgen {

// The costs of the model, in keys.
constexpr int item_keys = 96, launch_keys = 1536, most_waves = 4;
constexpr int bitwise_tiles = 4;  // of keys, which cuts that depend on a chunk alone are a multiple of

// Chunks that the same sequences hold one behind the other are a bundle, whose keys are
// theirs. A piece is what one part reads of one chunk.
struct Bundles {
  // [chunks]
  int* bundle;  // that the chunk is in; negative: it is left to decode
  int* key;     // where its keys begin, of those of all chunks
  int* piece;   // and its pieces, of those of all bundles' chunks
  int* column;  // number among the chunks that are in bundles

  // [bundles]
  int *first, *end;  // chunks
  int *tokens, *tiles;
  int *unit, *parts;  // cut at every multiple of unit, from there on to the start of a page
  int *order, *in_order;  // bundles, the heaviest items first, and what is summed up in this order
  int *items, *members, *runs, *offsets, *starts;  // where its own begin
  int count;

  // [parts of all bundles, and one more for each]
  int* start;  // the part's first piece, counted from the bundle's first
  int* owner;  // bundle; negative: it is the end of the last part
  int start_count;

  int* held;  // [warps + 1][columns]: query tokens that hold a chunk
  int columns;
  long long spared;

  __device__ Bundles(Scratch& scratch, int segments, int items_room, int warps) {
    int** const lists[] = {&bundle, &key, &piece, &column, &first, &end, &tokens, &tiles, &unit, &parts, &order, &in_order, &items, &members, &runs, &offsets, &starts};
    for (int** list : lists) *list = scratch.take(segments);
    start = scratch.take(2 * items_room), owner = scratch.take(2 * items_room);
    held = scratch.take((warps + 1) * segments);
    count = start_count = columns = 0;
    spared = 0;
  }

  // The bundle of a segment's chunk; negative: the segment is left to decode.
  __device__ int of_segment(const Chunks& chunks, int i) const {
    const int n = chunks.number[i];
    return n >= 0 ? bundle[n] : -1;
  }
  // Of a chunk that is in a bundle: the bundle's keys, and its pieces, before the chunk's.
  __device__ int keys_before(int n) const { return key[n] - key[first[bundle[n]]]; }
  __device__ int pieces_before(int n) const { return piece[n] - piece[first[bundle[n]]]; }
};

// The last token of so many at which a page begins: the last that a cut may move on to.
__device__ __forceinline__ int last_page(int tokens, int page_size) { return (tokens - 1) & -page_size; }
__device__ __forceinline__ int next_page(int token, int page_size) { return (token + page_size - 1) & -page_size; }

// How many parts end inside keys that begin behind `before` of the same list. Those before them
// are before / unit.
__device__ __forceinline__ int cuts_inside(int before, int tokens, int unit, int page_size) {
  return (before + last_page(tokens, page_size)) / unit - before / unit;
}

// Finds the bundles that are cheaper to share than to leave to decode.
template <class Config>
__device__ void find_bundles(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, Bundles& bundles) {
  const int least = params.bitwise ? 1 : 2, per_tile = params.shared_rows / params.group;
  auto tokens_of = [&](int n) { return step.segments[chunks.first[n]].tokens; };
  auto is_shared = [&](int n) { return chunks.holds[n] >= least; };
  auto goes_on = [&](int n) {  // as many hold it, each behind another of the chunk before: the same sequences
    return !params.bitwise && n > 0 && n < chunks.count && is_shared(n) && chunks.stray[n] == 0 && chunks.holds[n] == chunks.holds[n - 1];
  };
  auto begins = [&](int n) { return is_shared(n) && !goes_on(n) ? 1 : 0; };

  block.sums_before(chunks.count, tokens_of, bundles.key);
  int* const first = bundles.items;  // of those that may be shared, until bundles have items
  int* const end = bundles.members;
  int* const kept = bundles.runs;
  const int candidates = block.sums_before(chunks.count, begins, bundles.bundle);
  block.each(chunks.count, [&](int n) {
    const int number = bundles.bundle[n] - (begins(n) ? 0 : 1);
    bundles.bundle[n] = is_shared(n) ? number : -1;
    if (begins(n)) first[number] = n;
    if (is_shared(n) && !goes_on(n + 1)) end[number] = n + 1;
  });
  block.sync();

  auto tokens_in = [&](int c) { return bundles.key[end[c] - 1] + tokens_of(end[c] - 1) - bundles.key[first[c]]; };
  auto tiles_of = [&](int c) { return (chunks.queries[first[c]] - 1) / per_tile + 1; };
  auto gain = [&](int c) {
    const long long tokens = tokens_in(c), holds = chunks.holds[first[c]], queries = chunks.queries[first[c]];
    return holds * tokens - tiles_of(c) * (tokens + item_keys) - queries * params.group;
  };
  auto pays = [&](int c) { return params.bitwise || gain(c) > 0 ? 1 : 0; };
  long long gained = 0;
  int count = block.sums_before(candidates, pays, kept);
  block.each(candidates, [&](int c) {
    const int before = kept[c];
    if (!pays(c)) {
      kept[c] = -1;
      return;
    }
    gained += gain(c);
    bundles.first[before] = first[c], bundles.end[before] = end[c];
    bundles.tokens[before] = tokens_in(c), bundles.tiles[before] = tiles_of(c);
  });
  gained = block.sum(gained);
  if (!params.bitwise && gained * params.kv_heads < static_cast<long long>(launch_keys) * params.shared_blocks) count = 0;
  block.share(bundles.count, count);
  block.each(chunks.count, [&](int n) { bundles.bundle[n] = bundles.count > 0 && bundles.bundle[n] >= 0 ? kept[bundles.bundle[n]] : -1; });
  block.sync();
}

// The items and the members of items of so many keys at most: by all lanes of a warp.
struct ItemsAndMembers {
  long long items, members;
};
template <class Config>
__device__ ItemsAndMembers count_at(const Block<Config>& block, const Chunks& chunks, const Bundles& bundles, int unit) {
  ItemsAndMembers sum = {0, 0};
#pragma unroll 1
  for (int b = block.lane; b < bundles.count; b += 32) {
    const long long parts = (bundles.tokens[b] + unit - 1) / unit;
    sum.items += parts * bundles.tiles[b];
    sum.members += parts * chunks.queries[bundles.first[b]];
  }
  return {block.sum_of_warp(sum.items), block.sum_of_warp(sum.members)};
}

// What the search for the most keys of an item is at, for each number of waves.
struct UnitSearch {
  static constexpr int warps = 8;  // for each, which try a unit each
  struct Wave {
    int low, high;  // units, in multiples of the alignment, of which the least that is coarse enough is one
    int fine[warps];
  } waves[most_waves];
};

// The most keys of an item: of the units by which so many waves hold all items, that with the least cost.
template <class Config>
__device__ int best_unit(const ScheduleParams& params, const Block<Config>& block, const Chunks& chunks, const Bundles& bundles, UnitSearch& search, int align, int longest) {
  static_assert(Block<Config>::warps == UnitSearch::warps * most_waves, "warps for each number of waves");
  const long long tiles = block.total(bundles.count, [&](int b) { return bundles.tiles[b]; });
  auto most_items = [&](int wave) { return static_cast<long long>(max(1, (wave + 1) * params.shared_blocks / params.kv_heads)); };
  if (block.thread < most_waves) {
    const bool fits = tiles <= most_items(block.thread);  // a part each, at least
    search.waves[block.thread].low = 1, search.waves[block.thread].high = fits ? longest / align : 1;
  }
  const int wave = block.warp / UnitSearch::warps, mine = block.warp % UnitSearch::warps;
  UnitSearch::Wave& at = search.waves[wave];
#pragma unroll 1
  for (;;) {
    block.sync();
    bool going = false;
    for (const auto& w : search.waves) going = going || w.low < w.high;
    if (!going) break;
    auto tried = [&](int i) { return at.low + (at.high - at.low) * (i + 1) / (UnitSearch::warps + 1); };
    if (at.low < at.high) {
      const bool fine = count_at(block, chunks, bundles, tried(mine) * align).items > most_items(wave);
      if (block.lane == 0) at.fine[mine] = fine;
    }
    block.sync();
    if (mine == 0 && block.lane == 0 && at.low < at.high) {
      int coarse = 0;  // the first that is
      while (coarse < UnitSearch::warps && at.fine[coarse]) ++coarse;
      const int high = coarse < UnitSearch::warps ? tried(coarse) : at.high;
      if (coarse > 0) at.low = tried(coarse - 1) + 1;  // by the bounds as they were: high comes after
      at.high = high;
    }
  }
  int best = 0;
  long long least = 0;
#pragma unroll 1
  for (int w = 0; w < most_waves; ++w) {
    if (tiles > most_items(w)) continue;
    const int unit = search.waves[w].low * align;
    const long long members = count_at(block, chunks, bundles, unit).members;
    const long long cost = static_cast<long long>(w + 1) * (unit + item_keys) + members * params.group * params.kv_heads / params.shared_blocks;
    if (best == 0 || cost < least) best = unit, least = cost;
  }
  if (best > 0) return best;
  const long long keys = block.total(bundles.count, [&](int b) { return static_cast<long long>(bundles.tiles[b]) * bundles.tokens[b]; });
  const long long quarter = keys * params.kv_heads / params.shared_blocks / 4 / align;
  return static_cast<int>(min(static_cast<long long>(longest), max(1ll, quarter) * align));
}

// Cuts the bundles, or leaves none where there is no room for their items.
template <class Config>
__device__ void cut_bundles(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, Bundles& bundles, UnitSearch& search) {
  const int page = params.page_size, align = (params.shared_keys + page - 1) / page * page;
  auto cut_at = [&](int b, int unit) {
    const int last = bundles.end[b] - 1, before = bundles.keys_before(last);
    bundles.unit[b] = unit;
    bundles.parts[b] = 1 + (before + last_page(step.segments[chunks.first[last]].tokens, page)) / unit;
  };
  if (params.bitwise) {  // each chunk by its length alone
    const int least = bitwise_tiles * align, most = max(1, params.shared_blocks / params.kv_heads);
    block.each(bundles.count, [&](int b) {
      const int share = (bundles.tokens[b] + most - 1) / most;
      cut_at(b, (share + least - 1) / least * least);
    });
    block.sync();
    return;
  }
  int longest = 0;
  block.each(bundles.count, [&](int b) { longest = max(longest, bundles.tokens[b]); });
  longest = (block.maximum(longest) + align - 1) / align * align;
  for (int unit = best_unit(params, block, chunks, bundles, search, align, longest);; unit = min(2 * unit, longest)) {
    block.each(bundles.count, [&](int b) {  // into parts of about the same size
      const int tokens = bundles.tokens[b], parts = (tokens + unit - 1) / unit;
      if (parts > 1) {
        cut_at(b, ((tokens + parts - 1) / parts + align - 1) / align * align);
      } else {
        bundles.unit[b] = unit, bundles.parts[b] = 1;
      }
    });
    block.sync();
    const long long items = block.total(bundles.count, [&](int b) { return static_cast<long long>(bundles.parts[b]) * bundles.tiles[b]; });
    const long long members = block.total(bundles.count, [&](int b) { return static_cast<long long>(bundles.parts[b]) * chunks.queries[bundles.first[b]]; });
    if (items <= params.shared_item_room && members <= params.member_room) return;
    if (unit == longest) break;
  }
  block.share(bundles.count, 0);
  block.each(chunks.count, [&](int n) { bundles.bundle[n] = -1; });
  block.sync();
}

// first[b] becomes the sum of number(b) over the bundles before b in their order; returns that of all.
template <class Config, class Number>
__device__ int sums_in_order(const Block<Config>& block, const Bundles& bundles, Number number, int* first) {
  const int all = block.sums_before(bundles.count, [&](int i) { return number(bundles.order[i]); }, bundles.in_order);
  block.each(bundles.count, [&](int i) { first[bundles.order[i]] = bundles.in_order[i]; });
  return all;
}

// Gives what is written of the bundles its place.
template <class Config>
__device__ void place_bundles(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, Bundles& bundles) {
  auto tokens_of = [&](int n) { return step.segments[chunks.first[n]].tokens; };
  auto is_in = [&](int n) { return bundles.bundle[n] >= 0 ? 1 : 0; };
  auto pieces_of = [&](int n) {
    if (!is_in(n)) return 0;
    return 1 + cuts_inside(bundles.keys_before(n), tokens_of(n), bundles.unit[bundles.bundle[n]], params.page_size);
  };
  block.sums_before(chunks.count, pieces_of, bundles.piece);
  block.share(bundles.columns, block.sums_before(chunks.count, is_in, bundles.column));

  auto keys = [&](int b) { return min(bundles.tokens[b], bundles.unit[b]); };
  int most = 0;
  block.each(bundles.count, [&](int b) { most = max(most, keys(b)); });
  most = block.maximum(most);
  const long long spared = block.total(bundles.count, [&](int b) { return (chunks.holds[bundles.first[b]] - 1ll) * bundles.tokens[b]; });
  block.share(bundles.spared, max(0ll, spared));
  block.sort(bundles.count, most, keys, false, [&](int b, int place) { bundles.order[place] = b; });

  auto queries = [&](int b) { return chunks.queries[bundles.first[b]]; };
  auto chunks_in = [&](int b) { return bundles.end[b] - bundles.first[b]; };
  auto pieces_in = [&](int b) {
    const int last = bundles.end[b] - 1;
    return bundles.pieces_before(last) + pieces_of(last);
  };
  sums_in_order(block, bundles, [&](int b) { return bundles.tiles[b] * bundles.parts[b]; }, bundles.items);
  sums_in_order(block, bundles, [&](int b) { return queries(b) * bundles.parts[b]; }, bundles.members);
  sums_in_order(block, bundles, [&](int b) { return bundles.tiles[b] * pieces_in(b); }, bundles.runs);
  sums_in_order(block, bundles, [&](int b) { return queries(b) * chunks_in(b); }, bundles.offsets);
  block.share(bundles.start_count, sums_in_order(block, bundles, [&](int b) { return bundles.parts[b] + 1; }, bundles.starts));

  // Which piece each part begins with.
  block.each(chunks.count, [&](int n) {
    if (!is_in(n)) return;
    const int b = bundles.bundle[n], unit = bundles.unit[b];
    const int piece = bundles.pieces_before(n), part = bundles.keys_before(n) / unit, pieces = pieces_of(n);
    int* const start = bundles.start + bundles.starts[b];
    int* const owner = bundles.owner + bundles.starts[b];
    // A part, if the one before ends with the chunk before.
    const bool begins = piece == 0 || (bundles.keys_before(n - 1) + last_page(tokens_of(n - 1), params.page_size)) / unit < part;
#pragma unroll 1
    for (int i = begins ? 0 : 1; i < pieces; ++i) start[part + i] = piece + i, owner[part + i] = b;
    if (n + 1 == bundles.end[b]) start[bundles.parts[b]] = piece + pieces, owner[bundles.parts[b]] = -1;
  });
  block.sync();
}

// Writes the items of shared decode, and their runs. A part's items are one behind the other: their
// tiles walk the same keys at about the same time.
template <class Config>
__device__ void list_bundles(const ScheduleParams& params, const Block<Config>& block, const Step& step, const Chunks& chunks, const Bundles& bundles) {
  Item* const items = static_cast<Item*>(params.shared_items);
  Run* const runs = static_cast<Run*>(params.shared_runs);
  const int page = params.page_size, per_tile = params.shared_rows / params.group;
  auto queries = [&](int b) { return chunks.queries[bundles.first[b]]; };

  int listed = 0;
  block.each(bundles.count, [&](int b) { listed = max(listed, bundles.items[b] + bundles.tiles[b] * bundles.parts[b]); });
  listed = block.maximum(listed);
  block.each(params.shared_item_room - listed, [&](int i) { put(items + listed + i, 0, 0, 0, 0, 0, 0, 0, 0); });
  block.each(bundles.start_count, [&](int i) {
    const int b = bundles.owner[i];
    if (b < 0) return;
    const int part = i - bundles.starts[b], tiles = bundles.tiles[b], first = bundles.start[i], pieces = bundles.start[i + 1] - first;
    const int run = bundles.runs[b] + tiles * first, member = bundles.members[b] + part * queries(b);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int begin = tile * per_tile;
      put(items + bundles.items[b] + part * tiles + tile,
          member + begin, min(per_tile, queries(b) - begin), 0, run + tile * pieces, run + (tile + 1) * pieces, 0, 0, 0);
    }
  });
  block.each(chunks.count, [&](int n) {
    const int b = bundles.bundle[n];
    if (b < 0) return;
    const Segment s = step.segments[chunks.first[n]];
    const int unit = bundles.unit[b], tiles = bundles.tiles[b], before = bundles.keys_before(n);
    const int first_part = before / unit, cuts = cuts_inside(before, s.tokens, unit, page);
    const int offsets = bundles.offsets[b] + (n - bundles.first[b]) * queries(b);
    int piece = bundles.pieces_before(n), begin = 0;
#pragma unroll 1
    for (int i = 0; i <= cuts; ++i, ++piece) {
      const int part = first_part + i;
      const int end = i < cuts ? next_page((part + 1) * unit - before, page) : s.tokens;
      const int* const start = bundles.start + bundles.starts[b] + part;
      const int pieces = start[1] - start[0], run = bundles.runs[b] + tiles * start[0] + piece - start[0];
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        put(runs + run + tile * pieces, s.page, begin, end, offsets + tile * per_tile, VISIBLE, tiles == 1, 0, 0);
      }
      begin = end;
    }
  });
}

}  // namespace kgen
