// State of mbarriers and named barriers, of all blocks of a cluster.
#pragma once
#include <string.h>

#include <vector>

#include "shadow.hpp"

namespace kgen_emulator {

struct Barrier {
  uint32_t address;
  int count, line;         // of barrier_init
  int thread;              // that initialised it
  uint32_t syncs;          // of that thread's warp then
  bool fenced = false;     // and barrier_init_fence came afterwards
  uint32_t phase = 0;      // phases completed
  int pending;             // arrivals that this phase still needs
  long bytes = 0;          // that this phase still needs; negative where copies landed before they were expected
  uint32_t copied = 0;     // phases up to the last that a tensor copy is of
  int copy_line = 0;       // of that copy
  uint32_t peers = 0;      // phases up to the last that another block arrived at
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
  void reset(int blocks, size_t shared_bytes) {
    all_.clear();
    most_ = static_cast<size_t>(max_barriers / max_blocks * blocks);
    all_.reserve(most_);
    at_.resize(static_cast<size_t>(blocks));
    for (std::vector<int16_t>& at : at_) at.assign(shared_bytes / 8, -1);
    named_.assign(static_cast<size_t>(blocks * named_barriers), NamedBarrier());
  }
  NamedBarrier& named(int block, int id) { return named_[static_cast<size_t>(block * named_barriers + id)]; }
  bool full() const { return all_.size() == most_; }
  int count() const { return static_cast<int>(all_.size()); }
  Barrier& operator[](int i) { return all_[static_cast<size_t>(i)]; }
  // The barrier at an offset, a multiple of 8, of a block's shared memory; -1: none.
  int find(int block, uint32_t offset) const { return at_[static_cast<size_t>(block)][offset / 8]; }
  int add(int block, uint32_t offset, const Barrier& b) {
    at_[static_cast<size_t>(block)][offset / 8] = static_cast<int16_t>(count());
    all_.push_back(b);
    return count() - 1;
  }
  // What the 8 bytes of barrier i hold.
  static uint64_t content(int i) { return 0xBA881E8000000000u + static_cast<uint64_t>(i); }

 private:
  std::vector<Barrier> all_;
  size_t most_ = 0;
  std::vector<std::vector<int16_t>> at_;  // of each block
  std::vector<NamedBarrier> named_;
};

// Registers a thread that a kernel is taken to be compiled for that has so many
// threads on a multiprocessor.
inline int registers_at_launch(int threads) {
  const int most = 65536 / threads / 8 * 8;
  return most < 256 ? most : 256;
}

}  // namespace kgen_emulator
