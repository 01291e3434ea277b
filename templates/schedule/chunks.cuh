// What the segments of a step are: own tokens, and chunks, each of which several may hold.
#pragma once
#include "../abi.cuh"
#include "../tile/pointer.cuh"
#include "block.cuh"

namespace kgen {

constexpr int nobody = 0x7fffffff;

// The step as it is given.
struct Step {
  const Sequence* sequences;
  const Segment* segments;
  int sequence_count, segment_count;
  int* holder;  // [segments]: the sequence
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
  int* table;      // by a hash of a chunk: its first segment, or nobody; in the end -1 - its number
  int* place;      // [segments]: of the segment's chunk in the table; negative: it is of none
  int* number;     // [segments]: of the segment's chunk; negative: of none

  int* first;    // [chunks], as all below: the first segment
  int* holds;    // segments that are of it
  int* queries;  // query tokens of those
  int* stray;    // not 0: some hold does not come right behind one of the chunk before
  int count;

  __device__ Chunks(Scratch& scratch, int segments) {
    table_size = 1 << ptx::bit_length(2 * segments);  // at most half full
    table = scratch.take(table_size);
    int** const lists[] = {&place, &number, &first, &holds, &queries, &stray};
    for (int** list : lists) *list = scratch.take(segments);
    count = 0;
  }
};

// Eight words, which lists are made of, at once.
__device__ __forceinline__ void put(void* to, int a, int b, int c, int d, int e, int f, int g, int h) {
  static_cast<int4*>(to)[0] = make_int4(a, b, c, d);
  static_cast<int4*>(to)[1] = make_int4(e, f, g, h);
}

__device__ __forceinline__ bool is_of_chunk(const Segment& s) { return s.own == 0 && s.tokens > 0; }
__device__ __forceinline__ bool same_chunk(const Segment& a, const Segment& b) { return a.page == b.page && a.tokens == b.tokens; }

// Where the table is looked at first.
__device__ __forceinline__ int hash_of(const Segment& s, int table_size) {
  const uint32_t mixed = (static_cast<uint32_t>(s.page) * 0x9e3779b9u ^ static_cast<uint32_t>(s.tokens) * 0x85ebca6bu) * 0xc2b2ae35u;
  return (mixed ^ mixed >> 15) & (table_size - 1);
}

// Finds the chunks, and by whom they are held.
template <class Config>
__device__ void find_chunks(const Block<Config>& block, const Step& step, Chunks& chunks) {
  const Segment* const segments = step.segments;
  block.each(chunks.table_size, [&](int i) { chunks.table[i] = nobody; });
  block.each(step.sequence_count, [&](int q) {
    const Sequence s = step.sequences[q];
#pragma unroll 1
    for (int i = s.segment_begin; i < s.segment_end; ++i) step.holder[i] = q;
  });
  block.sync();
  // The first segment of those with a hash gets the place, and with it all of its chunk. Nobody waits for that.
  block.each(step.segment_count, [&](int i) {
    if (is_of_chunk(segments[i])) ptx::atomic_min(&chunks.table[hash_of(segments[i], chunks.table_size)], i);
  });
  block.sync();
  block.each(step.segment_count, [&](int i) {
    const Segment s = segments[i];
    const int at = hash_of(s, chunks.table_size);
    chunks.place[i] = !is_of_chunk(s) ? -1 : same_chunk(segments[chunks.table[at]], s) ? at : nobody;
  });
  block.sync();
  block.each(step.segment_count, [&](int i) {  // the few others look further
    if (chunks.place[i] != nobody) return;
    const Segment s = segments[i];
    for (int at = hash_of(s, chunks.table_size) + 1;; ++at) {
      int* const place = &chunks.table[at & (chunks.table_size - 1)];
      const int other = ptx::atomic_exchange_if(place, nobody, i);
      if (other != nobody && !same_chunk(segments[other], s)) continue;
      ptx::atomic_min(place, i);
      chunks.place[i] = at & (chunks.table_size - 1);
      return;
    }
  });
  block.sync();
  auto meets = [&](int i) { return chunks.place[i] >= 0 && chunks.table[chunks.place[i]] == i ? 1 : 0; };
  block.share(chunks.count, block.sums_before(step.segment_count, meets, chunks.number));
  block.each(step.segment_count, [&](int i) {
    if (!meets(i)) return;
    const int n = chunks.number[i];
    chunks.first[n] = i;
    chunks.holds[n] = chunks.queries[n] = chunks.stray[n] = 0;
    chunks.table[chunks.place[i]] = -1 - n;
  });
  block.sync();
  auto number_of = [&](int i) { return chunks.place[i] >= 0 ? -1 - chunks.table[chunks.place[i]] : -1; };
  block.each(step.segment_count, [&](int i) {
    const int n = number_of(i), q = step.holder[i];
    chunks.number[i] = n;
    if (n < 0) return;
    int before = -2;  // number of the chunk before
    for (int j = i; before < 0 && j-- > 0 && step.holder[j] == q;) before = number_of(j) < 0 ? -2 : number_of(j);
    ptx::atomic_add(&chunks.holds[n], 1);
    ptx::atomic_add(&chunks.queries[n], step.sequences[q].query_count);
    ptx::atomic_or(&chunks.stray[n], (before + 1) ^ n);
  });
  block.sync();
}

}  // namespace kgen
