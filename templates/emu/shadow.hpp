// The race detector: for each 16 bytes of shared memory, who touched them last
// through a ptx function, and what every warp knows of the others.
#pragma once
#include <stdint.h>

#include <vector>

namespace kgen_emulator {

// Who has a time of its own: a warp counts the instructions of the whole warp
// that it has passed, a warpgroup its groups of products, an mbarrier its phases.
constexpr int max_warps = 32, max_warpgroups = 8, max_barriers = 88;
constexpr int warpgroup_clock = max_warps, barrier_clock = warpgroup_clock + max_warpgroups;
constexpr int clocks = barrier_clock + max_barriers;

// What is known of another's time: all that it did before `time`, and of a warp
// what those lanes did at `time`.
struct Stamp {
  uint32_t time = 0, lanes = 0;
  void join(const Stamp& x) {
    if (x.time > time) {
      *this = x;
    } else if (x.time == time) {
      lanes |= x.lanes;
    }
  }
};

// What a warp knows of everyone, or what a barrier hands on.
struct Clock {
  Stamp of[clocks];
  void join(const Clock& x, int warps, int barriers) {
    for (int i = 0; i < warps; i++) of[i].join(x.of[i]);
    for (int i = warpgroup_clock; i < warpgroup_clock + warps / 4; i++) of[i].join(x.of[i]);
    for (int i = barrier_clock; i < barrier_clock + barriers; i++) of[i].join(x.of[i]);
  }
};

// When a thread does something.
struct Moment {
  int thread;
  uint32_t syncs;      // its warp's time
  const Clock* clock;  // what its warp knows
  int warp() const { return thread / 32; }
  // Has what `thread` of this clock did at that time happened before?
  bool follows(int clock_index, uint32_t time, int other) const {
    const Stamp& known = clock->of[clock_index];
    if (clock_index >= max_warps) return time < known.time;
    if (other == thread) return true;
    if (clock_index == warp()) return time < syncs;
    return time < known.time || (time == known.time && known.lanes >> other % 32 & 1);
  }
};

// What an access collides with: a printf format for the other thread.
struct Conflict {
  const char* text = nullptr;  // null: none
  int other = -1;
};

class Shadow {
 public:
  void reset(size_t bytes, int warps) {
    warps_ = warps;
    readers_ = warps + warps / 4;
    cells_.assign(bytes / 16, Cell());
    reads_.resize(cells_.size() * static_cast<size_t>(readers_));  // what counts is in Cell::readers
    fences_.assign(static_cast<size_t>(warps) * 32, 0);
  }
  // The thread orders its writes before later accesses of the asynchronous proxy.
  void fence(int thread) { fences_[static_cast<size_t>(thread)]++; }

  // A copy of cp.async from `now` on may write the cell at any time, until landed.
  Conflict copy(uint32_t cell, const Moment& now) {
    Conflict c = write(cell, now);
    Cell& x = cells_[cell];
    x.copies++;
    x.copier = static_cast<int16_t>(now.thread);
    return c;
  }
  // The thread has waited for its copy.
  void landed(uint32_t cell, const Moment& now) {
    Cell& x = cells_[cell];
    if (x.copies) x.copies--;
    wrote(x, now.warp(), now.syncs, now.thread);
  }
  Conflict write(uint32_t cell, const Moment& now) {
    Conflict c = before_write(cell, now);
    if (!c.text) wrote(cells_[cell], now.warp(), now.syncs, now.thread);
    return c;
  }
  // A tensor copy that the barrier's phase `phase` waits for, from `now` on.
  Conflict tensor_write(uint32_t cell, const Moment& now, int barrier, uint32_t phase) {
    Conflict c = before_write(cell, now);
    if (!c.text) c = unfenced(cells_[cell]);
    if (!c.text) wrote(cells_[cell], barrier_clock + barrier, phase, now.thread);
    return c;
  }
  Conflict read(uint32_t cell, const Moment& now) {
    Conflict c = before_read(cell, now);
    if (!c.text) mark(cell, now.warp(), now.syncs, now.thread);
    return c;
  }
  // A product of the warpgroup's group `group`, from `now` on.
  Conflict product_read(uint32_t cell, const Moment& now, uint32_t group) {
    Conflict c = before_read(cell, now);
    if (!c.text) c = unfenced(cells_[cell]);
    if (!c.text) mark(cell, warps_ + now.warp() / 4, group, now.thread);
    return c;
  }

 private:
  static constexpr const char* in_flight = "while thread %d has not waited for its copy to it";
  static constexpr const char* after_write = "after thread %d wrote it, with no barrier between";
  static constexpr const char* after_read = "after thread %d read it, with no barrier between";
  static constexpr const char* after_tensor = "that a tensor copy of thread %d writes, without having waited for that copy's phase of its barrier";
  static constexpr const char* after_product =
      "that a wgmma of thread %d's warpgroup reads, with no wgmma_wait by the warpgroup and barrier between";
  static constexpr const char* no_fence = "after thread %d wrote it with no fence_async_shared afterwards";
  struct Cell {
    int16_t writer = -1, copier = -1;  // threads
    uint8_t clock = 0;                 // the writer's
    uint16_t copies = 0;
    uint16_t fences = 0;   // of the writer, when it wrote
    uint32_t time = 0;     // of clock
    uint64_t readers = 0;  // since then: warps, then warpgroups
  };
  struct Read {
    uint32_t time;
    int16_t thread;
  };

  Conflict before_read(uint32_t cell, const Moment& now) const {
    const Cell& x = cells_[cell];
    if (x.copies) return {in_flight, x.copier};
    if (x.writer >= 0 && !now.follows(x.clock, x.time, x.writer)) {
      return {x.clock < max_warps ? after_write : after_tensor, x.writer};
    }
    return {};
  }
  Conflict before_write(uint32_t cell, const Moment& now) const {
    if (Conflict c = before_read(cell, now); c.text) return c;
    for (uint64_t left = cells_[cell].readers; left; left &= left - 1) {
      const int i = __builtin_ctzll(left);
      const Read& r = reads_[static_cast<size_t>(cell) * static_cast<size_t>(readers_) + static_cast<size_t>(i)];
      const bool product = i >= warps_;
      if (!now.follows(product ? warpgroup_clock + i - warps_ : i, r.time, r.thread)) {
        return {product ? after_product : after_read, r.thread};
      }
    }
    return {};
  }
  Conflict unfenced(const Cell& x) const {
    if (x.writer < 0 || x.clock >= max_warps || fences_[static_cast<size_t>(x.writer)] != x.fences) return {};
    return {no_fence, x.writer};
  }
  void wrote(Cell& x, int clock, uint32_t time, int thread) {
    x.writer = static_cast<int16_t>(thread);
    x.clock = static_cast<uint8_t>(clock);
    x.time = time;
    x.fences = fences_[static_cast<size_t>(thread)];
    x.readers = 0;
  }
  void mark(uint32_t cell, int reader, uint32_t time, int thread) {
    cells_[cell].readers |= uint64_t{1} << reader;
    reads_[static_cast<size_t>(cell) * static_cast<size_t>(readers_) + static_cast<size_t>(reader)] = {time, static_cast<int16_t>(thread)};
  }

  int warps_ = 0, readers_ = 0;
  std::vector<Cell> cells_;
  std::vector<Read> reads_;        // [cell][reader]
  std::vector<uint16_t> fences_;   // [thread]
};

}  // namespace kgen_emulator
