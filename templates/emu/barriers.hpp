// State of mbarriers and named barriers.
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
  NamedBarrier named[named_barriers];

  void reset(size_t shared_bytes) {
    all_.clear();
    all_.reserve(max_barriers);
    at_.assign(shared_bytes / 8, -1);
    for (NamedBarrier& b : named) b = NamedBarrier();
  }
  int count() const { return static_cast<int>(all_.size()); }
  Barrier& operator[](int i) { return all_[static_cast<size_t>(i)]; }
  // The barrier at an offset, a multiple of 8, of shared memory; -1: none.
  int find(uint32_t offset) const { return at_[offset / 8]; }
  int add(uint32_t offset, const Barrier& b) {
    at_[offset / 8] = static_cast<int16_t>(count());
    all_.push_back(b);
    return count() - 1;
  }
  // What the 8 bytes of barrier i hold.
  static uint64_t content(int i) { return 0xBA881E8000000000u + static_cast<uint64_t>(i); }

 private:
  std::vector<Barrier> all_;
  std::vector<int16_t> at_;
};

// Registers a thread that a kernel is taken to be compiled for that has so many
// threads on a multiprocessor.
inline int registers_at_launch(int threads) {
  const int most = 65536 / threads / 8 * 8;
  return most < 256 ? most : 256;
}

}  // namespace kgen_emulator
