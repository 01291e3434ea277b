// The machine that runs a block: fibers, their order, barriers, and how a
// launch fails.
#pragma once
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <numeric>
#include <utility>
#include <vector>

#include "barriers.hpp"
#include "calls.hpp"
#include "fiber.hpp"
#include "memory.hpp"
#include "products.hpp"
#include "shadow.hpp"
#include "tensors.hpp"

namespace kgen_emulator {

constexpr int warp_size = 32;
constexpr uint32_t shared_base = 0x400;  // the address that shared_address() gives to dynamic_shared()

class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(n) >> 32); }
  template <class T>
  void shuffle(T* items, int n) {
    for (int i = n - 1; i > 0; i--) std::swap(items[i], items[below(i + 1)]);
  }

 private:
  uint64_t state_;
};

enum class Op {
  none, sync_threads, sync_warp, shuffle_xor, ldmatrix_x4, ldmatrix_x4_trans, stmatrix_x4, mma_bf16, mma_fp16,
  named_barrier_sync, named_barrier_arrive, registers_take, registers_give, wgmma, wgmma_fence, wgmma_commit, wgmma_wait,
};
inline const char* name(Op op) {
  static const char* const names[] = {
      "nothing", "sync_threads", "sync_warp", "shuffle_xor", "ldmatrix_x4", "ldmatrix_x4_trans", "stmatrix_x4", "mma_m16n8k16<bf16>", "mma_m16n8k16<fp16>",
      "named_barrier_sync", "named_barrier_arrive", "registers_take", "registers_give", "Wgmma", "wgmma_fence", "wgmma_commit", "wgmma_wait",
  };
  return names[static_cast<int>(op)];
}

// What a launch did. gen/emulate reads it as it lies here.
struct Counters {
  uint64_t blocks, barriers;                                   // of a block
  uint64_t warp_barriers, shuffles, ldmatrices, mmas;          // of a warp
  uint64_t copy_bytes;                                         // read by cp.async
  uint64_t load_bytes, store_bytes;                            // load_16 and store_16, global
  uint64_t shared_load_bytes, shared_store_bytes;              // load_16 and store_16, shared
  uint64_t wgmmas;                                             // of a warpgroup
  uint64_t tensor_copy_bytes;                                  // written by tensor copies
};

struct Copy {
  uint32_t dst;
  const void* src;
  bool valid, landed;
  uint32_t group;
  int line;
};

// What a lane brings to an instruction of its warp.
struct Operands {
  int count, id;  // threads or registers, number of a named barrier
  const KgenWgmma* product;
  float* d;
  const uint32_t* a;
  uint32_t b0, b1;
  uint32_t* r;
  uint32_t address;
  float x;
  int lane_mask;
};

struct Lane {
  Context context;
  Operands operands;
  std::vector<Copy> copies;  // in the order of issue
  uint32_t committed = 0;    // groups
  struct {                   // where it waits, for an mbarrier
    int barrier, parity, line;
  } wait{};
};

// Why a warp as a whole cannot go on.
enum class Pause { none, named_barrier, registers, wgmma };

struct Warp {
  int order[warp_size];  // lanes in the order in which they run
  int position = 0;      // in order: the lane that runs, or runs next
  Op op = Op::none;      // what lanes wait at
  int line = 0;
  int arrived = 0;      // lanes that wait at op
  int at_barrier = 0;   // lanes that wait at sync_threads
  int returned = 0;     // lanes that have returned
  uint32_t returned_lanes = 0, waiting_lanes = 0;  // the latter for an mbarrier
  uint32_t stuck = 0;                              // lanes that cannot go on: they wait or have returned
  Pause pause = Pause::none;
  int pause_line = 0;
  uint32_t syncs = 0;    // instructions of the whole warp so far
  Clock clock;           // what it knows of others
  int registers = 0;     // a thread
  uint32_t settings = 0; // of registers so far
  int lane() const { return order[position]; }
  bool runs() const { return !(stuck >> lane() & 1); }
  void next_lane() {  // that can go on; there is one
    do position = (position + 1) % warp_size;
    while (!runs());
  }
};

class Machine {
 public:
  using Entry = void (*)(const void* params);
  struct Launch {
    Entry entry;
    const void* params;
    int grid[3];
    int threads;
    uint32_t shared;
    uint64_t seed;
    int min_blocks;  // of the launch bounds
  };

  Global global;
  Guarded shared;
  Shadow shadow;
  Counters counters{};
  char error[2048];
  char faulted_at[1024];  // the instruction that a fault came from, or empty
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  Barriers barriers;
  std::vector<TensorCopy> tensor_copies;  // under way
  std::vector<Warpgroup> warpgroups;
  volatile sig_atomic_t running = 0;  // a fiber runs
  volatile sig_atomic_t busy = 0;     // it is in a part of the host that must not be left
  const char* doing = nullptr;        // the ptx function that touches memory now, for faults
  int doing_line = 0;
  int early = 0;  // copies of this block may land early

  bool start() { return stacks_.reserve(); }
  bool stack_guard(uintptr_t address) const { return stacks_.guards(address); }

  // Runs a launch. False: error says why it failed.
  bool run(const Launch& launch) {
    counters = {};
    error[0] = faulted_at[0] = 0;
    launch_ = &launch;
    if (!shared.begin() || shared.size() != launch.shared) {
      shared.release();
      if (!shared.allocate(launch.shared, 1024)) {
        snprintf(error, sizeof error, "no memory for %u bytes of shared memory", launch.shared);
        return false;
      }
    }
    Random random(launch.seed);
    std::vector<int> order(static_cast<size_t>(launch.grid[0]) * launch.grid[1] * launch.grid[2]);
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order.data(), static_cast<int>(order.size()));
    bool good = true;
    for (int block : order) {
      kgen_here.block_x = block % launch.grid[0];
      kgen_here.block_y = block / launch.grid[0] % launch.grid[1];
      kgen_here.grid_x = launch.grid[0];
      random_ = Random(launch.seed ^ (static_cast<uint64_t>(block) + 1) * 0xd1342543de82ef95u);
      if (!(good = run_block())) break;
    }
    char where[256];
    if (global.damaged(where, sizeof where) && good) {
      snprintf(error, sizeof error, "out-of-bounds write, %s", where);
      good = false;
    }
    return good;
  }

  Warp& warp() { return *warp_; }
  Lane& lane() { return lanes[kgen_here.thread]; }
  Random& random() { return random_; }
  Moment now() const { return {kgen_here.thread, warp_->syncs, &warp_->clock}; }
  int warp_index() const { return kgen_here.thread / warp_size; }
  Lane* lanes_of_warp() { return &lanes[kgen_here.thread & ~31]; }

  // Arrives at an instruction of the whole warp. True: all lanes are here and
  // the caller performs it for all, then calls performed(). False: it has been
  // performed.
  bool arrive(Op op, int line) {
    Warp& w = *warp_;
    if (w.arrived == 0) {
      if (w.at_barrier || w.returned) {
        fail("diverged warp: this lane arrives at %s (line %d), but %d lanes of its warp %s", name(op), line,
             w.at_barrier ? w.at_barrier : w.returned, w.at_barrier ? "wait at sync_threads" : "have returned");
      }
      w.op = op;
      w.line = line;
    } else if (w.op != op || w.line != line) {
      fail("diverged warp: this lane arrives at %s (line %d), but %d lanes of its warp wait at %s (line %d)", name(op),
           line, w.arrived, name(w.op), w.line);
    }
    if (++w.arrived < warp_size) {
      stop_lane();
      return false;
    }
    w.arrived = 0;
    w.stuck = 0;
    return true;
  }
  void performed() {
    warp_->syncs++;
    may_switch();
  }
  // A place where another warp may go on, or a tensor copy land.
  void may_switch() {
    if (early && !tensor_copies.empty() && random_.below(4) == 0) land_one();
    if (interleave_ && random_.below(4) == 0) switch_warp();
  }
  // The running lane cannot go on; returns when it can.
  void stop_lane() {
    Warp& w = *warp_;
    Lane& from = lane();
    w.stuck |= 1u << w.lane();
    if (w.stuck == ~0u) return switch_warp();
    w.next_lane();
    resume(from, w);
  }
  // The running warp, all of whose lanes are here, cannot go on; returns when it can.
  void stop_warp(Pause pause, int line) {
    warp_->pause = pause;
    warp_->pause_line = line;
    switch_warp();
    warp_->pause = Pause::none;
  }

  void sync_threads(int line) {
    Warp& w = *warp_;
    if (w.arrived) {
      fail("diverged warp: this lane arrives at sync_threads (line %d), but %d lanes of its warp wait at %s (line %d)", line,
           w.arrived, name(w.op), w.line);
    }
    if (waiting_ == 0) {
      barrier_line_ = line;
    } else if (line != barrier_line_) {
      fail("diverged block: this thread arrives at sync_threads on line %d, but %d threads wait at the one on line %d", line,
           waiting_, barrier_line_);
    }
    waiting_++;
    w.at_barrier++;
    stop_lane();
  }

  // Adds to a clock what these lanes of a warp know and have done.
  void release(Clock& to, int warp, uint32_t lanes_of) {
    to.join(warps[warp].clock, static_cast<int>(warps.size()), barriers.count());
    to.of[warp].join({warps[warp].syncs, lanes_of});
  }
  // The running warp learns what a clock knows.
  void acquire(const Clock& from) { warp_->clock.join(from, static_cast<int>(warps.size()), barriers.count()); }

  bool pause_ends(int warp);  // can the paused warp go on?

  // Ends the launch with a message; the running fiber is given up.
  [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    size_t n = static_cast<size_t>(vsnprintf(error, sizeof error, format, args));
    va_end(args);
    if (n < sizeof error) {
      int t = kgen_here.thread;
      snprintf(error + n, sizeof error - n, "; thread %d (warp %d, lane %d) of block (%d,%d)", t, t / warp_size,
               t % warp_size, kgen_here.block_x, kgen_here.block_y);
    }
    Context given_up;
    switch_context(given_up, main_);
    __builtin_unreachable();
  }
  // Fails where there is a conflict; action is what the function does to the address.
  void check(const Conflict& c, const char* function, int line, const char* action, const void* address) {
    if (!c.text) return;
    char collision[128];
    snprintf(collision, sizeof collision, c.text, c.other);
    fail("race: %s (line %d) %s byte %zu of shared memory %s", function, line, action,
         static_cast<size_t>(static_cast<const unsigned char*>(address) - shared.begin()), collision);
  }
  // The bytes of shared memory at a 32-bit address, checked.
  unsigned char* shared_at(uint32_t address, const char* function, int line, uint32_t bytes = 16, uint32_t alignment = 16) {
    if (address % alignment) fail("%s (line %d): shared address 0x%x is not a multiple of %u", function, line, address, alignment);
    if (address < shared_base || address - shared_base + size_t{bytes} > shared.size()) {
      fail("%s (line %d): %u bytes at offset %ld are outside of shared memory (%zu bytes)", function, line, bytes,
           static_cast<long>(address) - static_cast<long>(shared_base), shared.size());
    }
    return shared.begin() + (address - shared_base);
  }

 private:
  static void start_thread();

  bool run_block() {
    const int threads = launch_->threads, warps = threads / warp_size;
    counters.blocks++;
    memset(shared.begin(), poison, shared.size());
    shadow.reset(shared.size(), warps);
    kgen_here.shared = shared.begin();
    interleave_ = random_.below(4) == 0;
    early = random_.below(4) == 0;
    lanes.resize(static_cast<size_t>(threads));
    for (int t = 0; t < threads; t++) {
      lanes[t].copies.clear();
      lanes[t].committed = 0;
      prepare(lanes[t].context, stacks_.top(t), stacks_.usable(t), start_thread);
    }
    this->warps.assign(static_cast<size_t>(warps), Warp());
    for (Warp& w : this->warps) {
      std::iota(w.order, w.order + warp_size, 0);
      random_.shuffle(w.order, warp_size);
      w.registers = registers_at_launch(threads * launch_->min_blocks);
    }
    barriers.reset(shared.size());
    tensor_copies.clear();
    warpgroups.assign(static_cast<size_t>(warps / 4), Warpgroup());
    returned_ = waiting_ = 0;
    warp_ = &this->warps[random_.below(warps)];
    kgen_here.thread = thread(*warp_);
    running = 1;
    switch_context(main_, lane().context);
    running = 0;
    doing = nullptr;
    if (error[0]) return false;
    if (const char* unfinished = left_over()) {
      snprintf(error, sizeof error, "the block ends with %s; block (%d,%d)", unfinished, kgen_here.block_x, kgen_here.block_y);
      return false;
    }
    if (long at = shared.damage()) {
      char where[128];
      shared.describe(shared.address() + (at < 0 ? at : static_cast<long>(shared.size()) + at - 1), "shared memory", where, sizeof where);
      snprintf(error, sizeof error, "out-of-bounds write, %s; block (%d,%d)", where, kgen_here.block_x, kgen_here.block_y);
      return false;
    }
    return true;
  }

  int thread(const Warp& w) const { return static_cast<int>(&w - warps.data()) * warp_size + w.lane(); }
  // Runs warp w from its position on; from is the lane that stops.
  void resume(Lane& from, Warp& w) {
    warp_ = &w;
    kgen_here.thread = thread(w);
    Lane& to = lane();
    if (&from != &to) switch_context(from.context, to.context);
  }
  // Goes on with any warp that can run.
  void switch_warp() {
    Lane& from = lane();
    int able[Stacks::count / warp_size], n = 0;
    for (;;) {
      for (int i = 0; i < static_cast<int>(warps.size()); i++) {
        if (can_run(i)) able[n++] = i;
      }
      if (n) break;
      if (returned_ == launch_->threads) {
        switch_context(from.context, main_);
        __builtin_unreachable();
      }
      if (waiting_ && waiting_ + returned_ == launch_->threads) {
        open_barrier();
      } else if (!land_one()) {
        deadlock();
      }
    }
    Warp& w = warps[able[random_.below(n)]];
    if (!w.runs()) w.next_lane();
    resume(from, w);
  }
  bool can_run(int warp) {
    const Warp& w = warps[warp];
    if (w.pause != Pause::none) return pause_ends(warp);
    return w.stuck != ~0u;
  }
  // All threads that have not returned are at the barrier: lets them go on.
  void open_barrier() {
    counters.barriers++;
    waiting_ = 0;
    Clock all;
    for (int i = 0; i < static_cast<int>(warps.size()); i++) release(all, i, ~0u);
    for (Warp& w : warps) {
      if (w.returned == warp_size) continue;
      w.clock = all;
      w.syncs++;
      w.at_barrier = 0;
      w.stuck = w.returned_lanes;
      random_.shuffle(w.order, warp_size);
      w.position = 0;
      if (!w.runs()) w.next_lane();
    }
  }

  // These, and pause_ends, are defined where their parts of the machine are.
  bool land_one();          // a tensor copy, if any is under way
  [[noreturn]] void deadlock();
  const char* left_over();  // what must have ended with the block, in words, or null

  Stacks stacks_;
  Context main_;
  const Launch* launch_ = nullptr;
  Warp* warp_ = nullptr;
  Random random_;
  bool interleave_ = false;  // warps take turns between barriers; else one runs as far as it can
  int returned_ = 0;         // threads
  int waiting_ = 0;          // threads at the barrier
  int barrier_line_ = 0;
  char left_[256];
};

inline Machine machine;  // one a process: signal handlers and the kernels' calls have no other way to it

inline void Machine::start_thread() {
  machine.launch_->entry(machine.launch_->params);
  Warp& w = *machine.warp_;
  if (w.arrived) {
    machine.fail("diverged warp: this lane returns, but %d lanes of its warp wait at %s (line %d)", w.arrived, name(w.op),
                 w.line);
  }
  w.returned++;
  w.returned_lanes |= 1u << w.lane();
  machine.returned_++;
  machine.stop_lane();
  __builtin_unreachable();
}

}  // namespace kgen_emulator

extern "C" {
KgenHere kgen_here;
void kgen_sync_threads(int line) { kgen_emulator::machine.sync_threads(line); }
}
