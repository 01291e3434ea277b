// mbarriers, named barriers and registers; how blocks stop when nothing can go on.
#pragma once
#include <algorithm>

#include "machine.hpp"

namespace kgen_emulator {

constexpr int most_arrivals = (1 << 20) - 1, most_bytes = (1 << 20) - 1;  // PTX ISA: of a phase

// The barrier at a place, checked; its index.
inline int barrier_at(const Machine::Place& at, const char* function, int line) {
  const Machine::Name where = machine.of_block(at.rank);
  const int i = machine.barriers.find(at.rank, at.offset);
  if (i < 0) machine.fail("%s (line %d): there is no barrier at byte %u of shared memory%s: nobody initialised it", function, line, at.offset, where.text);
  const Barrier& b = machine.barriers[i];
  const uint64_t content = Barriers::content(i);
  if (memcmp(machine.shared[at.rank].begin() + at.offset, &content, 8) != 0) {
    machine.fail("%s (line %d): the barrier at byte %u of shared memory%s (initialised on line %d) was overwritten", function, line, at.offset, where.text, b.line);
  }
  const bool near = at.rank == machine.rank();
  if (!(b.started && !near) && !machine.now().follows(b.thread / warp_size, b.syncs, b.thread)) {
    machine.fail("race: %s (line %d) uses the barrier at byte %u of shared memory%s, which %s initialised on line %d, with no %s between",
                 function, line, at.offset, where.text, machine.name_thread(b.thread).text, b.line,
                 near ? "sync_threads" : b.fenced ? "cluster_start or cluster_sync" : "barrier_init_fence and, after that, cluster_start or cluster_sync");
  }
  return i;
}
// The same of the block's own, at an address.
inline int barrier_at(uint32_t address, const char* function, int line) {
  machine.shared_at(address, function, line, 8, 8);
  return barrier_at({machine.rank(), address - shared_base}, function, line);
}

// Ends the barrier's phase if nothing is missing.
inline void end_phase(int i) {
  Barrier& b = machine.barriers[i];
  if (b.pending || b.bytes) return;
  b.phase++;
  b.pending = b.count;
  const int warps = static_cast<int>(machine.warps.size());
  b.published.join(b.gathered, warps, machine.barriers.count());
  size_t kept = 0;
  for (int t : b.waiting) {
    if ((b.phase & 1) == static_cast<uint32_t>(machine.lanes[static_cast<size_t>(t)].wait.parity)) {
      b.waiting[kept++] = t;
      continue;
    }
    Warp& w = machine.warps[static_cast<size_t>(t / warp_size)];
    w.stuck &= ~(1u << t % warp_size);
    w.waiting_lanes &= ~(1u << t % warp_size);
  }
  b.waiting.resize(kept);
}

// The running thread arrives at a barrier of its own block or of the other.
inline void arrive(int i, int bytes, const char* function, int line) {
  Barrier& b = machine.barriers[i];
  const uint32_t offset = b.offset;
  const Machine::Name where = machine.of_block(b.rank);
  if (bytes < 0 || bytes > most_bytes || b.bytes + bytes > most_bytes) {
    machine.fail("%s (line %d): %d bytes, with %ld that the barrier at byte %u%s expects, are not 0 to %d", function, line, bytes, b.bytes, offset, where.text, most_bytes);
  }
  if (b.pending == 0) {
    machine.fail("%s (line %d): one arrival too many: all %d of phase %u of the barrier at byte %u%s (initialised on line %d) have come, and it still waits for %ld bytes",
                 function, line, b.count, b.phase, offset, where.text, b.line, b.bytes);
  }
  b.bytes += bytes;
  b.pending--;
  machine.release(b.gathered, machine.warp_index(), 1u << kgen_here.thread % warp_size);
  end_phase(i);
  machine.may_switch();
}

// All lanes of the warp must bring the same.
inline void agree(const Lane* lanes, Op op, int line) {
  for (int i = 1; i < warp_size; i++) {
    if (lanes[i].operands.count != lanes[0].operands.count || lanes[i].operands.id != lanes[0].operands.id) {
      machine.fail("%s (line %d): the lanes of a warp do not give the same numbers", name(op), line);
    }
  }
}

// Says in words why a warp cannot go on, and by which thread; false: it has returned.
inline bool describe_wait(int warp, char* text, size_t room, int& thread) {
  const Warp& w = machine.warps[static_cast<size_t>(warp)];
  if (w.returned == warp_size) return false;
  thread = warp * warp_size + w.lane();
  const int rank = machine.rank_of(thread), first = machine.warp_in_block(warp) / 4 * 4;
  if (w.pause == Pause::wgmma) {
    const Warpgroup& g = machine.warpgroups[static_cast<size_t>(warp / 4)];
    snprintf(text, room, "wait at wgmma_wait (line %d) for products that warps %d to %d have not all issued (they have issued %zu, %zu, %zu, %zu)", w.pause_line,
             first, first + 3, static_cast<size_t>(g.member[0].issued), static_cast<size_t>(g.member[1].issued),
             static_cast<size_t>(g.member[2].issued), static_cast<size_t>(g.member[3].issued));
  } else if (w.pause == Pause::registers) {
    snprintf(text, room, "wait at registers_take (line %d) for registers that no warp gives", w.pause_line);
  } else if (w.pause == Pause::named_barrier) {
    const int id = machine.lanes[static_cast<size_t>(thread)].operands.id;
    const NamedBarrier& n = machine.barriers.named[rank][id];
    snprintf(text, room, "wait at named_barrier_sync (line %d): %d of %d threads have come to barrier %d", w.pause_line, n.arrived, n.threads, id);
  } else if (w.waiting_lanes) {
    thread = warp * warp_size + __builtin_ctz(w.waiting_lanes);
    const auto& wait = machine.lanes[static_cast<size_t>(thread)].wait;
    const Barrier& b = machine.barriers[wait.barrier];
    snprintf(text, room, "wait at barrier_wait (line %d) for parity %d of the barrier at byte %u (initialised on line %d), whose phase %u lacks %d of %d arrivals and %ld bytes",
             wait.line, wait.parity, b.offset, b.line, b.phase, b.pending, b.count, b.bytes);
  } else if (w.arrived) {
    snprintf(text, room, "wait with %d lanes at %s (line %d)", w.arrived, name(w.op), w.line);
  } else if (w.at_cluster_barrier) {
    const int come = machine.waiting_for_cluster, returned = machine.blocks[0].returned + machine.blocks[most_blocks - 1].returned;
    snprintf(text, room, "wait at %s (line %d), to which %d of the cluster's %d threads have come and %d will not, having returned", w.cluster_function(), w.cluster_line, come,
             machine.cluster() * machine.threads(), returned);
  } else {
    snprintf(text, room, "wait at sync_threads");
  }
  return true;
}

inline bool Machine::pause_ends(int warp) {
  const Warp& w = warps[static_cast<size_t>(warp)];
  switch (w.pause) {
    case Pause::wgmma:
      return warpgroups[static_cast<size_t>(warp / 4)].ready(warp % 4);
    case Pause::registers: {
      const int rank = rank_of(warp * warp_size);
      int left = registers_at_launch(launch_->threads * launch_->min_blocks) * launch_->threads;
      for (int i = first_warp(rank); i < end_warp(rank); i++) left -= warps[static_cast<size_t>(i)].registers * warp_size;
      return (lanes[static_cast<size_t>(warp * warp_size)].operands.count - w.registers) * warp_size <= left;
    }
    default:
      return false;
  }
}

// Names the first waiting warp's thread, and what every warp waits for.
inline void Machine::deadlock() {
  char text[1600] = "", last[400] = "", now[400];
  size_t n = 0;
  int named = -1, first = 0;
  auto put = [&](int end) {
    if (!last[0] || n >= sizeof text) return;
    char block[48] = "";
    const int rank = rank_of(first * warp_size), from = warp_in_block(first), to = from + end - first - 1;
    if (blocks_ > 1) snprintf(block, sizeof block, " of block (%d,%d)", block_x(rank), kgen_here.block_y);
    if (to > from) {
      n += static_cast<size_t>(snprintf(text + n, sizeof text - n, "; warps %d to %d%s %s", from, to, block, last));
    } else {
      n += static_cast<size_t>(snprintf(text + n, sizeof text - n, "; warp %d%s: lanes %s", from, block, last));
    }
  };
  const int count = static_cast<int>(warps.size());
  for (int i = 0; i < count; i++) {
    int thread = 0;
    if (!describe_wait(i, now, sizeof now, thread)) now[0] = 0;
    if (now[0] && named < 0) named = thread;
    if (strcmp(now, last) != 0 || i == first_warp(rank_of(i * warp_size))) {
      put(i);
      first = i;
      strcpy(last, now);
    }
  }
  put(count);
  kgen_here.thread = named;
  fail("deadlock: no thread can go on%s", text);
}

inline const char* Machine::left_over() {
  for (const Lane& lane : lanes) {
    if (size_t n = lane.copies.size()) {
      const int thread = static_cast<int>(&lane - lanes.data());
      left_rank_ = rank_of(thread);
      snprintf(left_, sizeof left_, "%zu copies that were never waited for, the first by cp_async_16 on line %d; thread %d", n, lane.copies[0].line,
               in_block(thread));
      return left_;
    }
  }
  for (int i = 0; i < barriers.count(); i++) {
    uint32_t waited = 0;  // phases, by some warp
    for (const Warp& w : warps) waited = std::max(waited, w.clock.of[barrier_clock + i].time);
    if (waited < barriers[i].copied) {
      left_rank_ = barriers[i].rank;
      snprintf(left_, sizeof left_, "a %s (line %d) that was never waited for", barriers[i].copy_function, barriers[i].copy_line);
      return left_;
    }
  }
  for (const Warpgroup& g : warpgroups) {
    const int warp = static_cast<int>(&g - warpgroups.data()) * 4, named = warp_in_block(warp);
    left_rank_ = rank_of(warp * warp_size);
    for (int m = 0; m < 4; m++) {
      const Warpgroup::Member& x = g.member[m];
      if (!x.accumulators.empty()) {
        snprintf(left_, sizeof left_, "a product of Wgmma (line %d) that was never waited for; warp %d", x.line, named + m);
        return left_;
      }
      if (warps[static_cast<size_t>(warp + m)].settings != warps[static_cast<size_t>(warp)].settings) {
        snprintf(left_, sizeof left_, "registers set (registers_take, registers_give) %u times in warp %d and %u times in warp %d of one warpgroup",
                 warps[static_cast<size_t>(warp)].settings, named, warps[static_cast<size_t>(warp + m)].settings, named + m);
        return left_;
      }
    }
    if (!g.steps.empty()) {
      const Step& s = g.steps.front();
      snprintf(left_, sizeof left_, "a %s (line %d) that not all warps of a warpgroup have executed; warp %d", name(s.op), s.line, s.warp);
      return left_;
    }
  }
  return nullptr;
}

}  // namespace kgen_emulator

extern "C" {

void kgen_barrier_init(uint32_t address, int count, int line) {
  using namespace kgen_emulator;
  unsigned char* p = machine.shared_at(address, "barrier_init", line, 8, 8);
  const uint32_t offset = address - shared_base;
  if (count < 1 || count > most_arrivals) machine.fail("barrier_init (line %d): a count of %d is not 1 to %d", line, count, most_arrivals);
  if (int i = machine.barriers.find(machine.rank(), offset); i >= 0) {
    machine.fail("barrier_init (line %d): byte %u of shared memory holds a barrier already, initialised on line %d", line, offset, machine.barriers[i].line);
  }
  if (machine.barriers.count() == max_barriers) machine.fail("barrier_init (line %d): the emulator has %d barriers a %s", line, max_barriers, machine.cluster() > 1 ? "cluster" : "block");
  Barrier b{};
  b.offset = offset;
  b.rank = machine.rank();
  b.count = b.pending = count;
  b.line = line;
  b.thread = kgen_here.thread;
  b.syncs = machine.now().syncs;
  machine.busy = 1;
  const uint64_t content = Barriers::content(machine.barriers.add(b));
  machine.busy = 0;
  memcpy(p, &content, 8);
}
void kgen_barrier_init_fence() {
  using namespace kgen_emulator;
  for (int i = 0; i < machine.barriers.count(); i++) {
    if (machine.barriers[i].thread == kgen_here.thread) machine.barriers[i].fenced = true;
  }
}
void kgen_barrier_arrive(uint32_t address, int line) {
  using namespace kgen_emulator;
  arrive(barrier_at(address, "barrier_arrive", line), 0, "barrier_arrive", line);
}
void kgen_barrier_arrive_expecting(uint32_t address, int bytes, int line) {
  using namespace kgen_emulator;
  arrive(barrier_at(address, "barrier_arrive_expecting", line), bytes, "barrier_arrive_expecting", line);
}
void kgen_barrier_wait(uint32_t address, int parity, int line) {
  using namespace kgen_emulator;
  if (parity != 0 && parity != 1) machine.fail("barrier_wait (line %d): a parity of %d is not 0 or 1", line, parity);
  machine.may_switch();
  const int i = barrier_at(address, "barrier_wait", line);
  Barrier& b = machine.barriers[i];
  while ((b.phase & 1) == static_cast<uint32_t>(parity)) {
    const int thread = kgen_here.thread;
    machine.lane().wait = {i, parity, line};
    machine.busy = 1;
    b.waiting.push_back(thread);
    machine.busy = 0;
    machine.warps[static_cast<size_t>(thread / warp_size)].waiting_lanes |= 1u << thread % warp_size;
    machine.stop_lane();
  }
  machine.acquire(b.published);
  machine.warp().clock.of[barrier_clock + i].time = b.phase;
}

void kgen_named_barrier(int id, int threads, bool wait, int line) {
  using namespace kgen_emulator;
  const Op op = wait ? Op::named_barrier_sync : Op::named_barrier_arrive;
  Operands& o = machine.lane().operands;
  o.id = id;
  o.count = threads;
  if (!machine.arrive(op, line)) return;
  agree(machine.lanes_of_warp(), op, line);
  if (id < 1 || id >= named_barriers) machine.fail("%s (line %d): barrier %d is not 1 to 15", name(op), line, id);
  const int most = machine.threads();
  if (threads < warp_size || threads > most || threads % warp_size) {
    machine.fail("%s (line %d): %d threads are not a multiple of %d up to the block's %d", name(op), line, threads, warp_size, most);
  }
  NamedBarrier& b = machine.barriers.named[machine.rank()][id];
  if (b.threads == 0) {
    b.threads = threads;
    b.line = line;
  } else if (b.threads != threads) {
    machine.fail("%s (line %d): barrier %d is of %d threads here and of %d on line %d", name(op), line, id, threads, b.threads, b.line);
  }
  b.arrived += warp_size;
  const int warp = machine.warp_index();
  machine.release(b.gathered, warp, ~0u);
  machine.busy = 1;
  if (wait) b.waiting.push_back(warp);
  machine.busy = 0;
  machine.warp().syncs++;
  if (b.arrived == b.threads) {
    for (int w : b.waiting) {
      machine.warps[static_cast<size_t>(w)].clock.join(b.gathered, static_cast<int>(machine.warps.size()), machine.barriers.count());
      machine.warps[static_cast<size_t>(w)].pause = Pause::none;
    }
    b = NamedBarrier();
    machine.may_switch();
  } else if (wait) {
    machine.stop_warp(Pause::named_barrier, line);
  }
}

void kgen_set_registers(int count, bool take, int line) {
  using namespace kgen_emulator;
  const Op op = take ? Op::registers_take : Op::registers_give;
  Operands& o = machine.lane().operands;
  o.count = count;
  o.id = 0;
  if (!machine.arrive(op, line)) return;
  Warp& w = machine.warp();
  const int warp = machine.warp_index();
  if (count < 24 || count > 256 || count % 8) machine.fail("%s (line %d): %d registers are not a multiple of 8 from 24 to 256", name(op), line, count);
  const int named = machine.warp_in_block(warp);
  if (machine.warpgroup_of(warp) < 0) machine.fail("%s (line %d): warp %d is in no warpgroup of four whole warps", name(op), line, named);
  if (take ? count < w.registers : count > w.registers) {
    machine.fail("%s (line %d): %d registers a thread, but warp %d has %d", name(op), line, count, named, w.registers);
  }
  if (take) {
    w.pause = Pause::registers;
    const bool now = machine.pause_ends(warp);
    w.pause = Pause::none;
    if (!now) machine.stop_warp(Pause::registers, line);
  }
  w.registers = count;
  w.settings++;
  for (int i = warp / 4 * 4; i < warp / 4 * 4 + 4; i++) {
    const Warp& other = machine.warps[static_cast<size_t>(i)];
    if (other.settings == w.settings && other.registers != count) {
      machine.fail("%s (line %d): %d registers a thread, but %d in warp %d of the same warpgroup", name(op), line, count, other.registers, machine.warp_in_block(i));
    }
  }
  machine.performed();
}

}  // extern "C"
