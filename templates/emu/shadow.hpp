// The race detector: for each 16 bytes of shared memory, who touched them last
// through a ptx function, and what every warp knows of the others.
#pragma once
#include <stdint.h>

#include <vector>

namespace kgen_emulator {

// Who has a time of its own: a warp counts the instructions of the whole warp
// that it has passed, and its groups of products, an mbarrier its phases.
constexpr int max_warps = 32, max_barriers = 112;  // of a cluster's blocks together
constexpr int most_blocks = 2;                     // of a cluster
constexpr int product_clock = max_warps, barrier_clock = product_clock + max_warps;
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
    for (int i = product_clock; i < product_clock + warps; i++) of[i].join(x.of[i]);
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

// What an access collides with: a printf format for the other thread's name.
struct Conflict {
  const char* text = nullptr;  // null: none
  int other = -1;
};

class Shadow {
 public:
  static uint32_t cells(size_t bytes) { return static_cast<uint32_t>((bytes + 15) / 16); }  // of a block
  // bytes: of each block; threads: from one block's first to the next's.
  void reset(size_t bytes, int blocks, int threads) {
    warps_ = blocks * threads / 32;
    readers_ = 2 * warps_;
    cells_.assign(cells(bytes) * static_cast<size_t>(blocks), Cell());
    copy_reads_.clear();
    others_.resize(blocks > 1 ? cells_.size() : 0);
    reads_.resize(cells_.size() * static_cast<size_t>(readers_));  // what counts is in Cell::readers
    fences_.assign(static_cast<size_t>(blocks * threads), 0);
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
    wrote(cell, now.warp(), now.syncs, now.thread);
  }
  Conflict write(uint32_t cell, const Moment& now) {
    Conflict c = before_write(cell, now);
    if (!c.text) wrote(cell, now.warp(), now.syncs, now.thread);
    return c;
  }
  // A bulk copy that the barrier's phase `phase` waits for, from `now` on: it writes the cell, or reads it.
  Conflict bulk_write(uint32_t cell, const Moment& now, int barrier, uint32_t phase) {
    Conflict c = before_write(cell, now);
    if (!c.text) c = unfenced(cell);
    if (!c.text) wrote(cell, barrier_clock + barrier, phase, now.thread);
    return c;
  }
  // The same of one half (1: the first 8 bytes, 2: the others), which a write of the other half does not
  // collide with; it is not of the asynchronous proxy. Only where there are two blocks.
  Conflict bulk_write_half(uint32_t cell, const Moment& now, int barrier, uint32_t phase, uint8_t half) {
    const Write before = cells_[cell].last;
    if (before.half == 0 || before.half == half) {  // else that write is not of this half, but the other is
      if (Conflict c = collision(before, now); c.text) return c;
    } else if (Conflict c = collision(others_[cell], now); c.text) {
      return c;
    }
    if (Conflict c = collision_with_readers(cell, now); c.text) return c;
    if (before.half != half) others_[cell] = before;
    wrote(cell, barrier_clock + barrier, phase, now.thread, half);
    return {};
  }
  Conflict copy_read(uint32_t cell, const Moment& now, int barrier, uint32_t phase) {
    Conflict c = before_read(cell, now);
    if (!c.text) c = unfenced(cell);
    if (c.text) return c;
    int32_t& last = cells_[cell].copy_read;
    copy_reads_.push_back({{phase, static_cast<int16_t>(now.thread)}, static_cast<int16_t>(barrier), last});
    last = static_cast<int32_t>(copy_reads_.size()) - 1;
    return {};
  }
  Conflict read(uint32_t cell, const Moment& now) {
    Conflict c = before_read(cell, now);
    if (!c.text) mark(cell, now.warp(), now.syncs, now.thread);
    return c;
  }
  // The warp's part of a product of its group `group`, from `now` on.
  Conflict product_read(uint32_t cell, const Moment& now, uint32_t group) {
    Conflict c = before_read(cell, now);
    if (!c.text) c = unfenced(cell);
    if (!c.text) mark(cell, warps_ + now.warp(), group, now.thread);
    return c;
  }

 private:
  static constexpr const char* in_flight = "while %s has not waited for its copy to it";
  static constexpr const char* after_write = "after %s wrote it, with no barrier between";
  static constexpr const char* after_read = "after %s read it, with no barrier between";
  static constexpr const char* after_bulk = "that a bulk copy or store_8_async of %s writes, without having waited for that copy's phase of its barrier";
  static constexpr const char* after_product =
      "that a wgmma of %s reads, with no wgmma_wait by its warp and barrier between";
  static constexpr const char* after_copy = "that a bulk copy of %s reads, with no wait for that copy's phase of its barrier, and barrier between";
  static constexpr const char* no_fence = "after %s wrote it with no fence_async_shared afterwards";
  struct Write {
    int16_t writer = -1;  // thread
    uint16_t fences = 0;  // of the writer, when it wrote
    uint32_t time = 0;    // of clock
    uint8_t clock = 0;    // the writer's
    uint8_t half = 0;     // 1 or 2: it wrote one half only, and the other's last write is in others_
  };
  struct Cell {
    Write last;
    int16_t copier = -1;  // thread
    uint16_t copies = 0;
    uint64_t readers = 0;  // since the last write of all of it: warps, then products of warps
    int32_t copy_read = -1;  // the same, of bulk copies: in copy_reads_; -1: none
  };
  struct Read {
    uint32_t time;
    int16_t thread;
  };
  struct CopyRead {
    Read read;        // the time: a phase of the barrier
    int16_t barrier;
    int32_t before;   // of the same cell, in copy_reads_; -1: none
  };

  Conflict before_read(uint32_t cell, const Moment& now) const {
    const Cell& x = cells_[cell];
    if (x.copies) return {in_flight, x.copier};
    if (Conflict c = collision(x.last, now); c.text) return c;
    return x.last.half ? collision(others_[cell], now) : Conflict();
  }
  static Conflict collision(const Write& x, const Moment& now) {
    if (x.writer < 0 || now.follows(x.clock, x.time, x.writer)) return {};
    return {x.clock < max_warps ? after_write : after_bulk, x.writer};
  }
  Conflict before_write(uint32_t cell, const Moment& now) const {
    if (Conflict c = before_read(cell, now); c.text) return c;
    return collision_with_readers(cell, now);
  }
  Conflict collision_with_readers(uint32_t cell, const Moment& now) const {
    for (uint64_t left = cells_[cell].readers; left; left &= left - 1) {
      const int i = __builtin_ctzll(left);
      const Read& r = reads_[static_cast<size_t>(cell) * static_cast<size_t>(readers_) + static_cast<size_t>(i)];
      const bool product = i >= warps_;
      if (!now.follows(product ? product_clock + i - warps_ : i, r.time, r.thread)) {
        return {product ? after_product : after_read, r.thread};
      }
    }
    for (int32_t i = cells_[cell].copy_read; i >= 0; i = copy_reads_[static_cast<size_t>(i)].before) {
      const CopyRead& x = copy_reads_[static_cast<size_t>(i)];
      if (!now.follows(barrier_clock + x.barrier, x.read.time, x.read.thread)) return {after_copy, x.read.thread};
    }
    return {};
  }
  Conflict unfenced(uint32_t cell) const {
    const Write& x = cells_[cell].last;
    if (Conflict c = unfenced(x); c.text) return c;
    return x.half ? unfenced(others_[cell]) : Conflict();
  }
  Conflict unfenced(const Write& x) const {
    if (x.writer < 0 || x.clock >= max_warps || fences_[static_cast<size_t>(x.writer)] != x.fences) return {};
    return {no_fence, x.writer};
  }
  void wrote(uint32_t cell, int clock, uint32_t time, int thread, uint8_t half = 0) {
    Cell& x = cells_[cell];
    x.last.writer = static_cast<int16_t>(thread);
    x.last.fences = fences_[static_cast<size_t>(thread)];
    x.last.time = time;
    x.last.clock = static_cast<uint8_t>(clock);
    x.last.half = half;
    if (half) return;  // a write of the other half must follow the readers still
    x.readers = 0;
    x.copy_read = -1;
  }
  void mark(uint32_t cell, int reader, uint32_t time, int thread) {
    cells_[cell].readers |= uint64_t{1} << reader;
    reads_[static_cast<size_t>(cell) * static_cast<size_t>(readers_) + static_cast<size_t>(reader)] = {time, static_cast<int16_t>(thread)};
  }

  int warps_ = 0, readers_ = 0;
  std::vector<Cell> cells_;        // of one block, then of the other
  std::vector<Write> others_;      // [cell], where there are two blocks
  std::vector<Read> reads_;        // [cell][reader]
  std::vector<CopyRead> copy_reads_;
  std::vector<uint16_t> fences_;  // [thread]
};

}  // namespace kgen_emulator
