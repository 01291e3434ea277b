// The race detector: for each 16 bytes of shared memory, who touched them last
// through a ptx function, and what every warp knows of the others.
#pragma once
#include <stdint.h>

#include <map>
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
    others_.clear();
    fences_.assign(static_cast<size_t>(warps) * 32, 0);
  }
  // The thread orders its writes before later accesses of the asynchronous proxy.
  void fence(int thread) { fences_[static_cast<size_t>(thread)]++; }

  // A copy of cp.async from `now` on may write the cell at any time, until landed.
  Conflict copy(uint32_t cell, const Moment& now) {
    Conflict c = write(cell, now, false);
    Cell& x = cells_[cell];
    x.copies++;
    x.copier = static_cast<int16_t>(now.thread);
    return c;
  }
  // The thread has waited for its copy.
  void landed(uint32_t cell, const Moment& now) {
    if (cells_[cell].copies) cells_[cell].copies--;
    wrote(cell, now.warp(), now.syncs, now.thread);
  }
  // Threads may write the same bytes with no barrier between: `same` says that
  // the cell holds what is written.
  Conflict write(uint32_t cell, const Moment& now, bool same) {
    Conflict c = before_write(cell, now);
    if (!c.text) {
      wrote(cell, now.warp(), now.syncs, now.thread);
    } else if (same && !cells_[cell].copies && cells_[cell].writer.clock < max_warps) {
      others_[cell].push_back(cells_[cell].writer);
      cells_[cell].writer = writer(now.warp(), now.syncs, now.thread);
      cells_[cell].shared = true;
      return {};
    }
    return c;
  }
  // A tensor copy that the barrier's phase `phase` waits for, from `now` on.
  Conflict tensor_write(uint32_t cell, const Moment& now, int barrier, uint32_t phase) {
    Conflict c = before_write(cell, now);
    if (!c.text && unfenced(cells_[cell].writer)) c = {no_fence, cells_[cell].writer.thread};
    if (!c.text) wrote(cell, barrier_clock + barrier, phase, now.thread);
    return c;
  }
  Conflict read(uint32_t cell, const Moment& now) {
    Conflict c = before_read(cell, now, false);
    if (!c.text) mark(cell, now.warp(), now.syncs, now.thread);
    return c;
  }
  // A product of the warpgroup's group `group`, from `now` on.
  Conflict product_read(uint32_t cell, const Moment& now, uint32_t group) {
    Conflict c = before_read(cell, now, true);
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
  struct Writer {
    int16_t thread = -1;  // -1: nobody
    uint8_t clock = 0;
    uint16_t fences = 0;  // of the thread, when it wrote
    uint32_t time = 0;    // of the clock
  };
  struct Cell {
    Writer writer;             // the last
    bool shared = false;       // others_ has more, who wrote the same
    int16_t copier = -1;       // thread
    uint16_t copies = 0;
    uint64_t readers = 0;      // since it was written: warps, then warpgroups
  };
  struct Read {
    uint32_t time;
    int16_t thread;
  };

  // A reader must come after one of those who wrote the same; for the
  // asynchronous proxy, after one whose fence came afterwards.
  Conflict before_read(uint32_t cell, const Moment& now, bool product) const {
    const Cell& x = cells_[cell];
    if (x.copies) return {in_flight, x.copier};
    Conflict c = before_read_of(x.writer, now, product);
    if (!c.text || !x.shared) return c;
    for (const Writer& w : others_.at(cell)) {
      if (!before_read_of(w, now, product).text) return {};
    }
    return c;
  }
  Conflict before_read_of(const Writer& w, const Moment& now, bool product) const {
    if (w.thread >= 0 && !now.follows(w.clock, w.time, w.thread)) return {w.clock < max_warps ? after_write : after_tensor, w.thread};
    if (product && unfenced(w)) return {no_fence, w.thread};
    return {};
  }
  // A writer must come after all who wrote or read.
  Conflict before_write(uint32_t cell, const Moment& now) const {
    const Cell& x = cells_[cell];
    if (x.copies) return {in_flight, x.copier};
    if (Conflict c = before_read_of(x.writer, now, false); c.text) return c;
    if (x.shared) {
      for (const Writer& w : others_.at(cell)) {
        if (Conflict c = before_read_of(w, now, false); c.text) return c;
      }
    }
    for (uint64_t left = x.readers; left; left &= left - 1) {
      const int i = __builtin_ctzll(left);
      const Read& r = reads_[static_cast<size_t>(cell) * static_cast<size_t>(readers_) + static_cast<size_t>(i)];
      const bool product = i >= warps_;
      if (!now.follows(product ? warpgroup_clock + i - warps_ : i, r.time, r.thread)) {
        return {product ? after_product : after_read, r.thread};
      }
    }
    return {};
  }
  bool unfenced(const Writer& w) const { return w.thread >= 0 && w.clock < max_warps && fences_[static_cast<size_t>(w.thread)] == w.fences; }
  Writer writer(int clock, uint32_t time, int thread) const {
    return {static_cast<int16_t>(thread), static_cast<uint8_t>(clock), fences_[static_cast<size_t>(thread)], time};
  }
  void wrote(uint32_t cell, int clock, uint32_t time, int thread) {
    Cell& x = cells_[cell];
    if (x.shared) others_.erase(cell);
    x.shared = false;
    x.writer = writer(clock, time, thread);
    x.readers = 0;
  }
  void mark(uint32_t cell, int reader, uint32_t time, int thread) {
    cells_[cell].readers |= uint64_t{1} << reader;
    reads_[static_cast<size_t>(cell) * static_cast<size_t>(readers_) + static_cast<size_t>(reader)] = {time, static_cast<int16_t>(thread)};
  }

  int warps_ = 0, readers_ = 0;
  std::vector<Cell> cells_;
  std::map<uint32_t, std::vector<Writer>> others_;  // by cell
  std::vector<Read> reads_;        // [cell][reader]
  std::vector<uint16_t> fences_;   // [thread]
};

}  // namespace kgen_emulator
