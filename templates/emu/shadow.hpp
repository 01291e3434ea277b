// The race detector: for each 16 bytes of shared memory, who touched them last
// through a ptx function, and when.
#pragma once
#include <stdint.h>

#include <vector>

namespace kgen_emulator {

// When a thread touches shared memory: barriers that the block has passed, and
// instructions of the whole warp that its warp has passed.
struct Moment {
  int thread;
  uint32_t barriers, warp_syncs;
  int warp() const { return thread / 32; }
};

// What an access collides with: a printf format for the other thread.
struct Conflict {
  const char* text = nullptr;  // null: none
  int other = -1;
};

class Shadow {
 public:
  void reset(size_t bytes) { cells_.assign(bytes / 16, Cell()); }

  // A copy from `now` on may write the cell at any time, until landed.
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
    wrote(x, now);
  }
  Conflict write(uint32_t cell, const Moment& now) {
    Cell& x = cells_[cell];
    if (x.copies) return {in_flight, x.copier};
    if (x.writer >= 0 && unordered(x.writer, x.write_barriers, x.write_syncs, now)) {
      return {after_write, x.writer};
    }
    if (x.reader >= 0 && x.read_barriers == now.barriers) {
      if (x.reader_warps & ~(1u << now.warp()) || unordered(x.reader, x.read_barriers, x.read_syncs, now)) {
        return {after_read, x.reader};
      }
    }
    wrote(x, now);
    return {};
  }
  Conflict read(uint32_t cell, const Moment& now) {
    Cell& x = cells_[cell];
    if (x.copies) return {in_flight, x.copier};
    if (x.writer >= 0 && unordered(x.writer, x.write_barriers, x.write_syncs, now)) {
      return {after_write, x.writer};
    }
    if (x.read_barriers != now.barriers) x.reader_warps = 0;
    x.reader_warps |= 1u << now.warp();
    x.reader = static_cast<int16_t>(now.thread);
    x.read_barriers = now.barriers;
    x.read_syncs = now.warp_syncs;
    return {};
  }

 private:
  static constexpr const char* in_flight = "while thread %d has not waited for its copy to it";
  static constexpr const char* after_write = "after thread %d wrote it, with no barrier between";
  static constexpr const char* after_read = "after thread %d read it, with no barrier between";
  struct Cell {
    int16_t writer = -1, reader = -1, copier = -1;
    uint16_t copies = 0;
    uint32_t write_barriers = 0, write_syncs = 0;
    uint32_t read_barriers = 0, read_syncs = 0, reader_warps = 0;
  };
  // Is an earlier access by `thread` not ordered before one by now.thread?
  static bool unordered(int thread, uint32_t barriers, uint32_t warp_syncs, const Moment& now) {
    if (thread == now.thread || barriers != now.barriers) return false;
    return thread / 32 != now.warp() || warp_syncs == now.warp_syncs;
  }
  static void wrote(Cell& x, const Moment& now) {
    x.writer = static_cast<int16_t>(now.thread);
    x.write_barriers = now.barriers;
    x.write_syncs = now.warp_syncs;
    x.reader = -1;
    x.reader_warps = 0;
  }

  std::vector<Cell> cells_;
};

}  // namespace kgen_emulator
