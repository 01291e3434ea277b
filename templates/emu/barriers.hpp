// State of mbarriers and named barriers.
#pragma once
#include <string.h>

#include <vector>

#include "shadow.hpp"

namespace kgen_emulator {

struct Barrier {
  uint32_t offset;         // in the shared memory of block `rank`
  int rank;
  int count, line;         // of barrier_init
  int thread;              // that initialised it
  uint32_t syncs;          // of that thread's warp then
  bool fenced = false;     // and barrier_init_fence came afterwards
  bool started = false;    // and after that a cluster_sync or cluster_start
  uint32_t phase = 0;      // phases completed
  int pending;             // arrivals that this phase still needs
  long bytes = 0;          // that this phase still needs; negative where copies landed before they were expected
  uint32_t copied = 0;     // phases up to the last that a bulk copy is of
  int copy_line = 0;       // of that copy
  const char* copy_function = nullptr;
  uint32_t given = 0;      // phases up to the last that a copy from the other block's shared memory is of
  int given_line = 0;      // of that copy
  Clock gathered, published;  // what those know who arrived; the same as of the last completed phase
  std::vector<int> waiting;   // threads
};

// Barrier `id` of bar.sync and bar.arrive.
struct NamedBarrier {
  int threads = 0;  // as the first to arrive says; 0: nobody has arrived
  int arrived = 0;  // threads
  int line = 0;     // of the first to arrive
  Clock gathered;
  std::vector<int> waiting;  // warps
};

constexpr int named_barriers = 16;

class Barriers {
 public:
  NamedBarrier named[most_blocks][named_barriers];

  void reset(size_t shared_bytes, int blocks) {
    all_.clear();
    all_.reserve(max_barriers);
    places_ = static_cast<uint32_t>(shared_bytes / 8);
    at_.assign(places_ * static_cast<size_t>(blocks), -1);
    for (int i = 0; i < blocks; i++) {
      for (NamedBarrier& b : named[i]) b = NamedBarrier();
    }
  }
  int count() const { return static_cast<int>(all_.size()); }
  Barrier& operator[](int i) { return all_[static_cast<size_t>(i)]; }
  // The barrier at an offset, a multiple of 8, of a block's shared memory; -1: none.
  int find(int rank, uint32_t offset) const { return at_[place(rank, offset)]; }
  int add(const Barrier& b) {
    at_[place(b.rank, b.offset)] = static_cast<int16_t>(count());
    all_.push_back(b);
    return count() - 1;
  }
  // What the 8 bytes of barrier i hold.
  static uint64_t content(int i) { return 0xBA881E8000000000u + static_cast<uint64_t>(i); }

 private:
  size_t place(int rank, uint32_t offset) const { return static_cast<uint32_t>(rank) * places_ + offset / 8; }

  std::vector<Barrier> all_;
  std::vector<int16_t> at_;
  uint32_t places_ = 0;  // of a block
};

// Registers a thread that a kernel is taken to be compiled for that has so many
// threads on a multiprocessor.
inline int registers_at_launch(int threads) {
  const int most = 65536 / threads / 8 * 8;
  return most < 256 ? most : 256;
}

}  // namespace kgen_emulator
