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
  int in_buckets[32 * sort_buckets];
};

// A thread among those of its block.
template <int Warps>
struct Thread {
  static constexpr int warps = Warps, threads = 32 * warps;
  static_assert(warps <= 32, "a lane for each warp");
  int thread, lane, warp;

  __device__ Thread() : thread(ptx::thread_index()), lane(ptx::lane_index()), warp(ptx::warp_index()) {}

  __device__ void sync() const { ptx::sync_threads(); }

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
};

// The kernel runs once a step, so that its code comes from memory: what is used all over is a function of its
// own, and no loop is unrolled.

// The sum of x over all threads, and the most.
template <int Warps>
__device__ __noinline__ long long sum_of_block(BlockNotes& notes, long long x) {
  const Thread<Warps> t;
  x = t.sum_of_warp(x);
  t.sync();  // nobody reads the notes of the time before
  if (t.lane == 0) notes.long_sums[t.warp] = x;
  t.sync();
  return t.sum_of_warp(t.lane < Warps ? notes.long_sums[t.lane] : 0);
}
template <int Warps>
__device__ __noinline__ int max_of_block(BlockNotes& notes, int x) {
  const Thread<Warps> t;
  x = t.max_of_warp(x);
  t.sync();
  if (t.lane == 0) notes.sums[t.warp] = x;
  t.sync();
  return t.max_of_warp(notes.sums[t.lane < Warps ? t.lane : 0]);
}

// x[i] becomes the sum of x[0] to x[i - 1] for each i below n, which other threads may have written and may read
// then; returns the sum of all. Each warp takes elements in a row.
template <int Warps>
__device__ __noinline__ int sums_before_in_block(BlockNotes& notes, int n, int* x) {
  const Thread<Warps> t;
  const int share = (n + t.threads - 1) / t.threads * 32, begin = min(n, t.warp * share), end = min(n, begin + share);
  t.sync();
  int mine = 0;
#pragma unroll 1
  for (int i = begin + t.lane; i < end; i += 32) mine += x[i];
  mine = ptx::shuffle(t.sum_through(mine), 31);
  if (t.lane == 0) notes.sums[t.warp] = mine;
  t.sync();
  const int through = t.sum_through(t.lane < Warps ? notes.sums[t.lane] : 0);
  const int all = ptx::shuffle(through, Warps - 1), of_warps = ptx::shuffle(through, max(t.warp - 1, 0));
  int before = t.warp > 0 ? of_warps : 0;
#pragma unroll 1
  for (int first = begin; first < end; first += 32) {
    const int i = first + t.lane, own = i < end ? x[i] : 0, until = t.sum_through(own);
    if (i < end) x[i] = before + until - own;
    before += ptx::shuffle(until, 31);
  }
  t.sync();
  return all;
}

template <class Config>
struct Block : Thread<Config::warps> {
  using Thread<Config::warps>::lane, Thread<Config::warps>::sync, Thread<Config::warps>::thread, Thread<Config::warps>::threads;
  using Thread<Config::warps>::warp, Thread<Config::warps>::warps;
  BlockNotes& notes;

  __device__ explicit Block(BlockNotes& shared) : notes(shared) {}

  __device__ long long sum(long long x) const { return sum_of_block<warps>(notes, x); }
  __device__ int maximum(int x) const { return max_of_block<warps>(notes, x); }

  // f of each i below n, by a thread each, and by a whole warp each.
  template <class F>
  __device__ void each(int n, F f) const {
#pragma unroll 1
    for (int i = thread; i < n; i += threads) f(i);
  }
  template <class F>
  __device__ void each_by_warp(int n, F f) const {
#pragma unroll 1
    for (int i = warp; i < n; i += warps) f(i);
  }

  // Makes x, which is shared, what all threads know; nobody may still want what it was.
  template <class T>
  __device__ void share(T& x, T known) const {
    if (thread == 0) x = known;
    sync();
  }

  // The sum of value(i) for each i below n.
  template <class Value>
  __device__ long long total(int n, Value value) const {
    long long mine = 0;
    each(n, [&](int i) { mine += value(i); });
    return sum(mine);
  }
  // before[i] becomes the sum of value(0) to value(i - 1) for each i below n; returns the sum of all.
  template <class Value>
  __device__ int sums_before(int n, Value value, int* before) const {
    each(n, [&](int i) { before[i] = value(i); });
    return sums_before_in_block<warps>(notes, n, before);
  }

  // f(i, the sum of count over those before i of the same key) of each i below n whose key is not negative, in what
  // order ever; all[key] becomes the sum over all of a key. Keys are below `keys`, counts at most most_count; sums is
  // scratch of warps * keys. Each warp takes elements in a row.
  template <class Key, class Count, class F>
  __device__ void rank(int n, int keys, int* sums, int* all, Key key, Count count, int most_count, F f) const {
    const int share = (n + threads - 1) / threads * 32, begin = min(n, warp * share), end = min(n, begin + share);
    int* const mine = sums + warp * keys;
    each(warps * keys, [&](int i) { sums[i] = 0; });
    sync();
    rank_in_warp(begin, end, mine, key, count, most_count, [](int, int) {});
    sync();
    each(keys, [&](int k) {  // from what each warp's elements are to what those of the warps before are
      int before = 0;
#pragma unroll 1
      for (int w = 0; w < warps; ++w) {
        const int of_warp = sums[w * keys + k];
        sums[w * keys + k] = before;
        before += of_warp;
      }
      all[k] = before;
    });
    sync();
    rank_in_warp(begin, end, mine, key, count, most_count, f);
  }

  // That of the elements from begin to end, by a warp; sums, by key, is of all before them, and then with them.
  template <class Key, class Count, class F>
  __device__ void rank_in_warp(int begin, int end, int* sums, Key key, Count count, int most_count, F f) const {
#pragma unroll 1
    for (int first = begin; first < end; first += 32) {
      const int i = first + lane, k = i < end ? key(i) : -1, x = k >= 0 ? count(i) : 0;
      const uint32_t same = ptx::match(k), lower = same & ((1u << lane) - 1);
      int before = 0, of_all = 0;
#pragma unroll 1
      for (int bit = 0; most_count >> bit != 0; ++bit) {
        const uint32_t lanes = ptx::ballot(x >> bit & 1);
        before += ptx::count_bits(lanes & lower) << bit;
        of_all += ptx::count_bits(lanes & same) << bit;
      }
      if (k >= 0) f(i, sums[k] + before);
      ptx::sync_warp();
      if (k >= 0 && lower == 0) sums[k] += of_all;
      ptx::sync_warp();
    }
  }

  // The places of n elements by a counting sort, the heaviest first, of which `most` is: weights are in 17 buckets
  // at most, each a power of two wide. Elements of one bucket stay in order, or come backwards.
  template <class Weight, class Store>
  __device__ void sort(int n, int most, Weight weight, bool backwards, Store store) const {
    const int shift = ptx::bit_length(most / (sort_buckets - 1));
    auto bucket = [&](int i) { return (most - weight(i)) >> shift; };
    rank(n, sort_buckets, notes.in_buckets, notes.buckets, bucket, [](int) { return 1; }, 1, [&](int i, int before) {
      int begin = 0;
#pragma unroll 1
      for (int b = 0; b < bucket(i); ++b) begin += notes.buckets[b];
      store(i, begin + (backwards ? notes.buckets[bucket(i)] - 1 - before : before));
    });
    sync();
  }
};

}  // namespace kgen
