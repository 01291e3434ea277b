// What the segments of a step are: own tokens, and chunks, each of which several may hold.
#pragma once
#include "../abi.cuh"
#include "../tile/pointer.cuh"
#include "block.cuh"

namespace kgen {

constexpr int nobody = 0x7fffffff;

// The step as it is given. Positions of lists, and what the lists say, are ints.
struct Step {
  const Sequence* sequences;
  const Segment* segments;
  int sequence_count, segment_count;
};

// Takes arrays of scratch, one behind the other.
struct Scratch {
  int* next;
  __device__ int* take(int n) {
    int* const taken = next;
    next += n;
    return taken;
  }
};

// A chunk is numbered in the order in which the segments meet it.
struct Chunks {
  int table_size;  // a power of two
  int* table;      // the first segment of the chunk, by a hash; or nobody
  int* number;     // [segments]: of the segment's chunk; negative: of none

  int* first;    // [chunks], as all below: the first segment
  int* holds;    // segments that are of it
  int* queries;  // query tokens of those
  int* stray;    // not 0: some hold does not come right behind one of the chunk before
  int count;

  __device__ Chunks(Scratch& scratch, int segments) {
    table_size = 1 << ptx::bit_length(2 * segments);  // at most half full
    table = scratch.take(table_size);
    number = scratch.take(segments);
    first = scratch.take(segments), holds = scratch.take(segments), queries = scratch.take(segments), stray = scratch.take(segments);
    count = 0;
  }
};

__device__ __forceinline__ bool is_of_chunk(const Segment& s) { return s.own == 0 && s.tokens > 0; }

// The place in the table of a segment's chunk, where the first segment that is of it comes to
// stand.
__device__ __forceinline__ int place_of_chunk(const Step& step, const Chunks& chunks, int i) {
  const Segment s = step.segments[i];
  const uint32_t mask = chunks.table_size - 1;
  uint32_t at = (static_cast<uint32_t>(s.page) * 0x9e3779b9u ^ static_cast<uint32_t>(s.tokens) * 0x85ebca6bu) * 0xc2b2ae35u;
  for (at ^= at >> 15;; ++at) {
    int* const place = &chunks.table[at & mask];
    const int other = ptx::atomic_exchange_if(place, nobody, i);
    if (other != nobody) {
      const Segment& o = step.segments[other];
      if (o.page != s.page || o.tokens != s.tokens) continue;
      ptx::atomic_min(place, i);
    }
    return at & mask;
  }
}

// Finds the chunks, and by whom they are held.
template <class Config>
__device__ void find_chunks(const Block<Config>& block, const Step& step, Chunks& chunks) {
  int* const place = chunks.number;  // until the number is known
  block.each(chunks.table_size, [&](int i) { chunks.table[i] = nobody; });
  block.sync();
  block.each(step.segment_count, [&](int i) { place[i] = is_of_chunk(step.segments[i]) ? place_of_chunk(step, chunks, i) : -1; });
  block.sync();
  auto meets = [&](int i) { return place[i] >= 0 && chunks.table[place[i]] == i; };
  // A chunk's number takes the place of its first segment in the table, as -1 - number.
  chunks.count = block.sums_before(step.segment_count, [&](int i) { return meets(i) ? 1 : 0; }, [&](int i, int before) {
    if (!meets(i)) return;
    chunks.first[before] = i;
    chunks.holds[before] = chunks.queries[before] = chunks.stray[before] = 0;
    chunks.table[place[i]] = -1 - before;
  });
  block.sync();
  block.each_by_warp(step.sequence_count, [&](int q) {
    const Sequence s = step.sequences[q];
    int before = -2;  // number of the chunk before
    for (int begin = s.segment_begin; begin < s.segment_end; begin += 32) {
      const int i = begin + block.lane;
      int n = -1;
      if (i < s.segment_end && place[i] >= 0) n = -1 - chunks.table[place[i]];
      const uint32_t held = ptx::ballot(n >= 0), lower = held & ((1u << block.lane) - 1);
      const int lane_before = ptx::shuffle(n, max(ptx::bit_length(lower) - 1, 0));
      if (i < s.segment_end) chunks.number[i] = n;
      if (n >= 0) {
        ptx::atomic_add(&chunks.holds[n], 1);
        ptx::atomic_add(&chunks.queries[n], s.query_count);
        ptx::atomic_or(&chunks.stray[n], ((lower != 0 ? lane_before : before) + 1) ^ n);
      }
      const int last = ptx::shuffle(n, max(ptx::bit_length(held) - 1, 0));
      if (held != 0) before = last;
    }
  });
  block.sync();
}

}  // namespace kgen
