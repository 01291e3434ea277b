// The machine that runs a block, or a cluster of two: fibers, their order,
// barriers, and how a launch fails.
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
#include "previous.hpp"
#include "products.hpp"
#include "shadow.hpp"
#include "tensors.hpp"

namespace kgen_emulator {

constexpr int warp_size = 32;
constexpr uint32_t shared_base = 0x400;  // the address that shared_address() gives to dynamic_shared()
// An address of the cluster is that address and, above it, the block's rank and one.
constexpr int rank_bit = 24;

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
  uint64_t shared_copy_bytes;                                  // shared_copy_to
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
  uint32_t path;  // the calls that lead to an instruction of a warpgroup
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
  const void* base;  // the frame that calls the kernel
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
  int elected = 0;       // the lane that elect() chooses
  int registers = 0;     // a thread
  uint32_t settings = 0; // of registers so far
  int at_cluster_barrier = 0, cluster_line = 0;  // lanes that wait at cluster_sync or cluster_start, and where
  bool starts = false;                           // at the latter, which hands on no accesses
  struct {  // the latest arrival in the other block's shared memory
    Stamp stamp;
    int thread, line;
    const char* function;
  } reached{};
  const char* cluster_function() const { return starts ? "cluster_start" : "cluster_sync"; }
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
    int cluster;     // blocks of a cluster: 1 or 2
    bool early;      // it starts before the launch ahead has ended
    bool optimized;  // the kernel's library is: the compiler may have copied calls or merged them, and left frame pointers out
  };
  // What the machine keeps of each block that runs.
  struct Block {
    int returned = 0;  // threads
    int waiting = 0;   // threads at sync_threads
    int barrier_line = 0;
    struct Acquired {
      const void* map;
      int thread;
      uint32_t syncs;  // the time of its warp
    };
    std::vector<Acquired> maps;
  };

  Global global;
  Previous previous;
  Guarded shared[most_blocks];  // of each block
  Shadow shadow;
  Counters counters{};
  char error[2048];
  char faulted_at[1024];  // the instruction that a fault came from, or empty
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  Barriers barriers;
  std::vector<BulkCopy> bulk_copies;  // under way
  std::vector<Warpgroup> warpgroups;
  volatile sig_atomic_t running = 0;  // a fiber runs
  volatile sig_atomic_t busy = 0;     // it is in a part of the host that must not be left
  const char* doing = nullptr;        // the ptx function that touches memory now, for faults
  int doing_line = 0;
  int early = 0;  // copies of this block may land early
  Block blocks[most_blocks];
  int waiting_for_cluster = 0;  // threads at cluster_sync or cluster_start
  bool begun = false;           // all blocks of the cluster have, by one of these

  bool start() { return stacks_.reserve(); }
  bool stack_guard(uintptr_t address) const { return stacks_.guards(address); }

  // Runs a launch. False: error says why it failed.
  bool run(const Launch& launch) {
    counters = {};
    error[0] = faulted_at[0] = 0;
    launch_ = &launch;
    if (!prepare_blocks()) return false;
    Random random(launch.seed);
    const int clusters_x = launch.grid[0] / blocks_;
    std::vector<int> order(static_cast<size_t>(clusters_x) * launch.grid[1] * launch.grid[2]);
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order.data(), static_cast<int>(order.size()));
    bool good = true;
    waited_ = false;
    waiting_for_previous_.clear();
    previous.begin(global, launch.early);
    for (int cluster : order) {
      first_block_x_ = cluster % clusters_x * blocks_;
      kgen_here.block_y = cluster / clusters_x % launch.grid[1];
      kgen_here.grid_x = launch.grid[0];
      random_ = Random(launch.seed ^ (static_cast<uint64_t>(cluster) + 1) * 0xd1342543de82ef95u);
      good = run_cluster();
      previous.end();
      if (!good) break;
    }
    if (good && launch.early && !waited_) {
      snprintf(error, sizeof error, "the launch may start before the one ahead of it has ended, and no thread waits for that one");
      good = false;
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

  // Threads and warps are numbered through the cluster: those of rank 1 begin at a multiple
  // of a warpgroup, so that a few numbers may be of none.
  int cluster() const { return blocks_; }
  int threads() const { return launch_->threads; }  // of a block
  bool optimized() const { return launch_->optimized; }
  int rank() const { return kgen_here.rank; }
  int rank_of(int thread) const { return thread / stride_; }
  int first_warp(int rank) const { return rank * stride_ / warp_size; }
  int end_warp(int rank) const { return first_warp(rank) + launch_->threads / warp_size; }
  int in_block(int thread) const { return thread - rank_of(thread) * stride_; }
  int warp_in_block(int warp) const { return in_block(warp * warp_size) / warp_size; }
  // The index of a warp's warpgroup; -1: it is in none of four whole warps.
  int warpgroup_of(int warp) const { return warp_in_block(warp) / 4 < launch_->threads / (4 * warp_size) ? warp / 4 : -1; }
  int block_x(int rank) const { return first_block_x_ + rank; }
  bool ended(int rank) const { return blocks[rank].returned == launch_->threads; }
  // The running thread's block's shared memory.
  Guarded& own() { return shared[kgen_here.rank]; }
  // The 16 bytes of the race detector at an own address, or at an offset in a block's memory.
  uint32_t cell(uint32_t address) const { return cell(kgen_here.rank, address - shared_base); }
  uint32_t cell(int rank, uint32_t offset) const { return static_cast<uint32_t>(rank) * Shadow::cells(launch_->shared) + offset / 16; }

  // Arrives at an instruction of the whole warp. True: all lanes are here and
  // the caller performs it for all, then calls performed(). False: it has been
  // performed.
  bool arrive(Op op, int line) {
    Warp& w = *warp_;
    if (w.arrived == 0) {
      if (w.at_barrier || w.at_cluster_barrier || w.returned) {
        fail("diverged warp: this lane arrives at %s (line %d), but %d lanes of its warp %s", name(op), line,
             w.at_barrier ? w.at_barrier : w.at_cluster_barrier ? w.at_cluster_barrier : w.returned,
             w.at_barrier ? "wait at sync_threads" : w.at_cluster_barrier ? w.cluster_function() : "have returned");
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
  // A place where another warp may go on, or a bulk copy land.
  void may_switch() {
    if (early && !bulk_copies.empty() && random_.below(4) == 0) land_one();
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
    Block& b = blocks[rank()];
    refuse_diverged("sync_threads", line);
    if (b.waiting == 0) {
      b.barrier_line = line;
    } else if (line != b.barrier_line) {
      fail("diverged block: this thread arrives at sync_threads on line %d, but %d threads wait at the one on line %d", line,
           b.waiting, b.barrier_line);
    }
    b.waiting++;
    w.at_barrier++;
    stop_lane();
  }
  // Its threads may wait on several lines.
  void cluster_sync(bool starts, int line) {
    Warp& w = *warp_;
    w.starts = starts;
    refuse_diverged(w.cluster_function(), line);
    w.at_cluster_barrier++;
    w.cluster_line = line;
    waiting_for_cluster++;
    stop_lane();
  }

  void wait_for_previous() {
    waited_ = true;
    while (previous.pending()) {
      busy = 1;
      waiting_for_previous_.push_back(kgen_here.thread);
      busy = 0;
      stop_lane();
    }
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
      const int t = in_block(kgen_here.thread);
      snprintf(error + n, sizeof error - n, "; thread %d (warp %d, lane %d) of block (%d,%d)", t, t / warp_size,
               t % warp_size, block_x(rank_of(kgen_here.thread)), kgen_here.block_y);
    }
    Context given_up;
    switch_context(given_up, main_);
    __builtin_unreachable();
  }
  // Names a block for a message where it is not the running thread's: " of block (1,0)".
  struct Name {
    char text[48];
  };
  Name of_block(int rank) const {
    Name name{};
    if (rank != rank_of(kgen_here.thread)) snprintf(name.text, sizeof name.text, " of block (%d,%d)", block_x(rank), kgen_here.block_y);
    return name;
  }
  // The same for a thread: "thread 5 of block (1,0)", or "thread 5" of this one.
  Name name_thread(int thread) const {
    Name name{};
    snprintf(name.text, sizeof name.text, "thread %d%.32s", in_block(thread), of_block(rank_of(thread)).text);
    return name;
  }
  // Fails where there is a conflict; action is what the function does to the address, which
  // is in the running thread's block.
  void check(const Conflict& c, const char* function, int line, const char* action, const void* address) {
    if (!c.text) return;
    check(c, function, line, action, rank(), static_cast<uint32_t>(static_cast<const unsigned char*>(address) - own().begin()));
  }
  void check(const Conflict& c, const char* function, int line, const char* action, int rank, uint32_t offset) {
    if (!c.text) return;
    char collision[192];
    snprintf(collision, sizeof collision, c.text, name_thread(c.other).text);
    fail("race: %s (line %d) %s byte %u of shared memory%s %s", function, line, action, offset, of_block(rank).text, collision);
  }
  // The bytes of the block's own shared memory at a 32-bit address, checked.
  unsigned char* shared_at(uint32_t address, const char* function, int line, uint32_t bytes = 16, uint32_t alignment = 16) {
    if (address % alignment) fail("%s (line %d): shared address 0x%x is not a multiple of %u", function, line, address, alignment);
    if (address < shared_base || address - shared_base + size_t{bytes} > own().size()) outside(address, function, line, bytes);
    return own().begin() + (address - shared_base);
  }
  // A place in the shared memory of a block of the cluster.
  struct Place {
    int rank;
    uint32_t offset;
  };
  Place place_at(uint32_t address, const char* function, int line, uint32_t bytes, uint32_t alignment);  // an address of the cluster, checked
  // Fails where that block may not run: it has ended, or nobody knows that it has begun.
  void must_run(int rank, const char* function, int line);
  // The same, and remembers that the running thread touches the block's shared memory.
  void reach(int rank, const char* function, int line);

 private:
  static void start_thread();

  [[noreturn]] void outside(uint32_t address, const char* function, int line, uint32_t bytes);
  // Threads of one warp part at a barrier that is not one of warps.
  void refuse_diverged(const char* function, int line) {
    const Warp& w = *warp_;
    if (w.arrived) {
      fail("diverged warp: this lane arrives at %s (line %d), but %d lanes of its warp wait at %s (line %d)", function, line,
           w.arrived, name(w.op), w.line);
    }
  }

  // Takes the clusters' size from the launch, and gives every block its shared memory.
  bool prepare_blocks() {
    blocks_ = launch_->cluster;
    stride_ = launch_->threads;
    if (blocks_ > 1) stride_ = static_cast<int>(round_up(static_cast<size_t>(stride_), 4 * warp_size));
    if (blocks_ < 1 || blocks_ > most_blocks) {
      snprintf(error, sizeof error, "the emulator has clusters of (1,1,1) and (2,1,1) blocks only");
    } else if (launch_->grid[0] % blocks_) {
      snprintf(error, sizeof error, "a grid of %d blocks in x is not whole clusters of %d", launch_->grid[0], blocks_);
    } else if (blocks_ * stride_ > max_warps * warp_size) {
      snprintf(error, sizeof error, "clusters of two blocks of %d threads: the emulator has blocks of up to %d in clusters", launch_->threads,
               max_warps * warp_size / blocks_);
    }
    for (int i = 0; i < blocks_ && !error[0]; i++) {
      if (shared[i].begin() && shared[i].size() == launch_->shared) continue;
      shared[i].release();
      if (!shared[i].allocate(launch_->shared, 1024)) snprintf(error, sizeof error, "no memory for %u bytes of shared memory", launch_->shared);
    }
    return !error[0];
  }

  bool run_cluster() {
    start_cluster();
    running = 1;
    switch_context(main_, lane().context);
    running = 0;
    doing = nullptr;
    if (error[0]) return false;
    if (const char* unfinished = left_over()) {
      snprintf(error, sizeof error, "the block ends with %s; block (%d,%d)", unfinished, block_x(left_rank_), kgen_here.block_y);
      return false;
    }
    for (int i = 0; i < blocks_; i++) {
      const Guarded& memory = shared[i];
      if (long at = shared[i].damage()) {
        char where[128];
        memory.describe(memory.address() + (at < 0 ? at : static_cast<long>(memory.size()) + at - 1), "shared memory", where, sizeof where);
        snprintf(error, sizeof error, "out-of-bounds write, %s; block (%d,%d)", where, block_x(i), kgen_here.block_y);
        return false;
      }
    }
    return true;
  }
  // All state is that of blocks which have not begun; the first warp is drawn.
  void start_cluster() {
    const int all = blocks_ * stride_;
    counters.blocks += static_cast<uint64_t>(blocks_);
    for (int i = 0; i < blocks_; i++) {
      memset(shared[i].begin(), poison, shared[i].size());
      blocks[i] = Block();
    }
    shadow.reset(shared[0].size(), blocks_, stride_);
    interleave_ = random_.below(4) == 0;
    early = random_.below(4) == 0;
    lanes.resize(static_cast<size_t>(all));
    for (Lane& lane : lanes) {
      lane.copies.clear();
      lane.committed = 0;
    }
    warps.assign(static_cast<size_t>(all / warp_size), Warp());
    for (int i = 0; i < blocks_; i++) start_warps(i);
    barriers.reset(shared[0].size(), blocks_);
    bulk_copies.clear();
    warpgroups.assign(warps.size() / 4, Warpgroup());
    waiting_for_cluster = 0;
    begun = false;
    ahead_ = -1;
    int first = 0;
    if (blocks_ > 1) {
      ahead_ = random_.below(2 * blocks_);
      first = first_warp(random_.below(blocks_));
    }
    warp_ = &warps[first + random_.below(launch_->threads / warp_size)];
    kgen_here.thread = thread(*warp_);
    enter_block();
  }
  void start_warps(int rank) {
    const int first = rank * stride_;
    for (int t = first; t < first + launch_->threads; t++) prepare(lanes[t].context, stacks_.top(t), stacks_.usable(t), start_thread);
    for (int i = first_warp(rank); i < end_warp(rank); i++) {
      Warp& w = warps[i];
      std::iota(w.order, w.order + warp_size, 0);
      random_.shuffle(w.order, warp_size);
      w.elected = w.order[w.order[0] == 0];  // not lane 0, which code may take it for
      w.registers = registers_at_launch(launch_->threads * launch_->min_blocks);
    }
    for (int i = end_warp(rank); i < (first + stride_) / warp_size; i++) {  // numbers of no warp
      warps[i].returned = warp_size;
      warps[i].stuck = warps[i].returned_lanes = ~0u;
    }
  }
  // What the running thread sees is now its own block's.
  void enter_block() {
    const int rank = rank_of(kgen_here.thread);
    kgen_here.rank = rank;
    kgen_here.first_thread = rank * stride_;
    kgen_here.block_x = block_x(rank);
    kgen_here.shared = shared[rank].begin();
  }
  // The block's last thread has returned: what the other block's threads did in its shared
  // memory must have happened before, whatever their order was this time.
  void check_reached(int rank);

  int thread(const Warp& w) const { return static_cast<int>(&w - warps.data()) * warp_size + w.lane(); }
  // Runs warp w from its position on; from is the lane that stops.
  void resume(Lane& from, Warp& w) {
    warp_ = &w;
    kgen_here.thread = thread(w);
    if (blocks_ > 1) enter_block();
    Lane& to = lane();
    if (&from != &to) switch_context(from.context, to.context);
  }
  // Goes on with any warp that can run.
  void switch_warp() {
    Lane& from = lane();
    int able[Stacks::count / warp_size], n = 0;
    for (;;) {
      open_barriers();
      for (int i = 0; i < static_cast<int>(warps.size()); i++) {
        if (can_run(i)) able[n++] = i;
      }
      if (n) break;
      if (all_returned() == blocks_ * launch_->threads) {
        switch_context(from.context, main_);
        __builtin_unreachable();
      }
      if (!land_one() && !end_previous()) deadlock();
    }
    if (ahead_ >= 0 && ahead_ < blocks_) n = prefer(ahead_, able, n);
    Warp& w = warps[able[random_.below(n)]];
    if (!w.runs()) w.next_lane();
    resume(from, w);
  }
  // Lets threads go on that wait for the launch ahead. False: it has ended.
  bool end_previous() {
    if (!previous.end()) return false;
    for (int t : waiting_for_previous_) warps[t / warp_size].stuck &= ~(1u << t % warp_size);
    waiting_for_previous_.clear();
    return true;
  }
  bool can_run(int warp) {
    const Warp& w = warps[warp];
    if (w.pause != Pause::none) return pause_ends(warp);
    return w.stuck != ~0u;
  }
  // Keeps of the warps that can run those of one block, if there is any.
  int prefer(int rank, int* able, int n) const {
    int kept = 0;
    for (int i = 0; i < n; i++) {
      if (rank_of(able[i] * warp_size) == rank) std::swap(able[kept++], able[i]);
    }
    return kept ? kept : n;
  }
  int all_returned() const {
    int n = 0;
    for (int i = 0; i < blocks_; i++) n += blocks[i].returned;
    return n;
  }
  // Lets threads go on where all that have not returned are at their barrier.
  void open_barriers() {
    for (int i = 0; i < blocks_; i++) {
      Block& b = blocks[i];
      if (!b.waiting || b.waiting + b.returned != launch_->threads) continue;
      counters.barriers++;
      b.waiting = 0;
      open_barrier(first_warp(i), end_warp(i));
    }
    if (waiting_for_cluster && waiting_for_cluster + all_returned() == blocks_ * launch_->threads) {
      waiting_for_cluster = 0;
      begun = true;
      for (int i = 0; i < barriers.count(); i++) barriers[i].started = barriers[i].fenced;
      open_barrier(0, static_cast<int>(warps.size()));
    }
  }
  void open_barrier(int first, int end) {
    Clock all;
    for (int i = first; i < end; i++) {
      if (!warps[i].starts) release(all, i, ~0u);
    }
    for (int i = first; i < end; i++) {
      Warp& w = warps[i];
      if (w.returned == warp_size) continue;
      w.clock.join(all, static_cast<int>(warps.size()), barriers.count());
      w.syncs++;
      w.at_barrier = w.at_cluster_barrier = 0;
      w.starts = false;
      w.stuck = w.returned_lanes;
      random_.shuffle(w.order, warp_size);
      w.position = 0;
      if (!w.runs()) w.next_lane();
    }
  }

  // These, and pause_ends, are defined where their parts of the machine are.
  bool land_one();          // a bulk copy, if any is under way
  [[noreturn]] void deadlock();
  const char* left_over();  // what must have ended with the block, in words, or null

  Stacks stacks_;
  Context main_;
  const Launch* launch_ = nullptr;
  Warp* warp_ = nullptr;
  Random random_;
  bool interleave_ = false;  // warps take turns between barriers; else one runs as far as it can
  int blocks_ = 1;           // of a cluster
  int stride_ = 0;           // from a thread of one block to the same of the next
  int first_block_x_ = 0;    // of the cluster
  bool waited_ = false;      // a thread of the launch for the one ahead
  std::vector<int> waiting_for_previous_;  // threads
  int ahead_ = -1;           // the block whose warps run first, where that is a rank
  char left_[256];
  int left_rank_ = 0;
};

inline Machine machine;  // one a process: signal handlers and the kernels' calls have no other way to it

inline void Machine::start_thread() {
  machine.lane().base = __builtin_frame_address(0);
  machine.launch_->entry(machine.launch_->params);
  Warp& w = *machine.warp_;
  if (w.arrived) {
    machine.fail("diverged warp: this lane returns, but %d lanes of its warp wait at %s (line %d)", w.arrived, name(w.op),
                 w.line);
  }
  w.returned++;
  w.returned_lanes |= 1u << w.lane();
  machine.blocks[machine.rank()].returned++;
  if (machine.cluster() > 1 && machine.ended(machine.rank())) machine.check_reached(machine.rank());
  machine.stop_lane();
  __builtin_unreachable();
}

}  // namespace kgen_emulator

extern "C" {
KgenHere kgen_here;
int kgen_elected() { return kgen_emulator::machine.warp().elected; }
void kgen_wait_for_previous_kernel() { kgen_emulator::machine.wait_for_previous(); }
void kgen_sync_threads(int line) { kgen_emulator::machine.sync_threads(line); }
void kgen_cluster_sync(int line) { kgen_emulator::machine.cluster_sync(false, line); }
void kgen_cluster_start(int line) { kgen_emulator::machine.cluster_sync(true, line); }
}
