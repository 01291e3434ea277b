// What a block does together: sums, sums of all that comes before, a counting sort.
#pragma once
#include "../ptx/integers.cuh"

namespace kgen {

constexpr int sort_buckets = 17;  // to within an eighth of the heaviest at worst

// What the threads of a block tell each other.
struct BlockNotes {
  long long long_sums[32];
  int sums[32];
  int buckets[sort_buckets];
};

template <class Config>
struct Block {
  static constexpr int warps = Config::warps, threads = 32 * warps;
  static_assert(warps <= 32, "a lane for each warp");
  BlockNotes& notes;
  int thread, lane, warp;

  __device__ explicit Block(BlockNotes& shared)
      : notes(shared), thread(ptx::thread_index()), lane(ptx::lane_index()), warp(ptx::warp_index()) {}

  __device__ void sync() const { ptx::sync_threads(); }
  // f of each i below n, by a thread each, and by a whole warp each.
  template <class F>
  __device__ void each(int n, F f) const {
    for (int i = thread; i < n; i += threads) f(i);
  }
  template <class F>
  __device__ void each_by_warp(int n, F f) const {
    for (int i = warp; i < n; i += warps) f(i);
  }

  // The sum of x over the lanes up to this one.
  __device__ int sum_through(int x) const {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = ptx::shuffle(x, max(lane - distance, 0));
      if (lane >= distance) x += before;
    }
    return x;
  }
  __device__ long long sum_of_warp(long long x) const {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) x += ptx::shuffle_xor(x, distance);
    return x;
  }
  __device__ int max_of_warp(int x) const {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) x = max(x, ptx::shuffle(x, lane ^ distance));
    return x;
  }

  // Of all threads.
  __device__ long long sum(long long x) const {
    x = sum_of_warp(x);
    sync();  // nobody reads the notes of the time before
    if (lane == 0) notes.long_sums[warp] = x;
    sync();
    return sum_of_warp(lane < warps ? notes.long_sums[lane] : 0);
  }
  // The sum of value(i) for each i below n.
  template <class Value>
  __device__ long long total(int n, Value value) const {
    long long mine = 0;
    each(n, [&](int i) { mine += value(i); });
    return sum(mine);
  }
  __device__ int maximum(int x) const {
    x = max_of_warp(x);
    sync();
    if (lane == 0) notes.sums[warp] = x;
    sync();
    return max_of_warp(notes.sums[lane < warps ? lane : 0]);
  }
  // The sum of x over the threads before this one; all: over all.
  __device__ int sum_before(int x, int& all) const {
    const int through = sum_through(x);
    sync();
    if (lane == 31) notes.sums[warp] = through;
    sync();
    const int of_warps = sum_through(lane < warps ? notes.sums[lane] : 0);
    all = ptx::shuffle(of_warps, warps - 1);
    const int of_warps_before = ptx::shuffle(of_warps, max(warp - 1, 0));
    return (warp > 0 ? of_warps_before : 0) + through - x;
  }

  // store(i, the sum of value(0) to value(i - 1)) for each i below n; returns the sum of all.
  template <class Value, class Store>
  __device__ int sums_before(int n, Value value, Store store) const {
    const int share = (n + threads - 1) / threads, begin = min(n, thread * share), end = min(n, begin + share);
    int mine = 0, all;
    for (int i = begin; i < end; ++i) mine += value(i);
    int before = sum_before(mine, all);
    for (int i = begin; i < end; ++i) {
      const int x = value(i);
      store(i, before);
      before += x;
    }
    return all;
  }

  // The places of n elements by a counting sort, the heaviest first: buckets are a power of
  // two of weights, by which most and most / 16 are in 17 at most. Elements of one bucket
  // stay in order, or come backwards.
  template <class Weight, class Store>
  __device__ void sort(int n, int most, Weight weight, bool backwards, Store store) const {
    const int shift = ptx::bit_length(most / (sort_buckets - 1));
    sync();
    if (thread < sort_buckets) notes.buckets[thread] = 0;
    sync();
    each(n, [&](int i) { ptx::atomic_add(&notes.buckets[(most - weight(i)) >> shift], 1); });
    sync();
    each_by_warp(sort_buckets, [&](int bucket) {
      int begin = 0, found = 0;
      for (int b = 0; b < bucket; ++b) begin += notes.buckets[b];
      const int count = notes.buckets[bucket];
      for (int first = 0; found < count; first += 32) {
        const int i = first + lane;
        const bool is = i < n && (most - weight(i)) >> shift == bucket;
        const uint32_t lanes = ptx::ballot(is);
        const int before = found + ptx::count_bits(lanes & ((1u << lane) - 1));
        if (is) store(i, begin + (backwards ? count - 1 - before : before));
        found += ptx::count_bits(lanes);
      }
    });
    sync();
  }
};

}  // namespace kgen
