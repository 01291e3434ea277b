// What blocks of one cluster do in each other's shared memory.
#pragma once
#include "sync.hpp"

namespace kgen_emulator {

// The rank in an address of the cluster; -1: it is none.
inline int rank_in(uint32_t address) {
  const uint32_t above = address >> rank_bit;
  return above >= 1 && above <= static_cast<uint32_t>(machine.cluster()) ? static_cast<int>(above) - 1 : -1;
}

inline void refuse_of_cluster(uint32_t address, const char* function, int line) {
  const int rank = rank_in(address);
  if (rank < 0) return;
  machine.fail("%s (line %d): 0x%x is an address of the cluster, that shared_of made for rank %d, where one of the block's own is needed", function, line, address, rank);
}

inline void Machine::outside(uint32_t address, const char* function, int line, uint32_t bytes) {
  refuse_of_cluster(address, function, line);
  fail("%s (line %d): %u bytes at offset %ld are outside of shared memory (%zu bytes)", function, line, bytes,
       static_cast<long>(address) - static_cast<long>(shared_base), own().size());
}

inline Machine::Place Machine::place_at(uint32_t address, const char* function, int line, uint32_t bytes, uint32_t alignment) {
  const int rank = rank_in(address);
  if (rank < 0) fail("%s (line %d): 0x%x is no address of the cluster: shared_of makes those", function, line, address);
  if (address % alignment) fail("%s (line %d): shared address 0x%x is not a multiple of %u", function, line, address, alignment);
  const long offset = static_cast<long>(address & ((1u << rank_bit) - 1)) - static_cast<long>(shared_base);
  if (offset < 0 || static_cast<size_t>(offset) + bytes > shared[rank].size()) {
    fail("%s (line %d): %u bytes at offset %ld are outside of shared memory%s (%zu bytes)", function, line, bytes, offset, of_block(rank).text, shared[rank].size());
  }
  return {rank, static_cast<uint32_t>(offset)};
}

inline void Machine::must_run(int rank, const char* function, int line) {
  if (rank == this->rank()) return;
  if (ended(rank)) fail("%s (line %d): block (%d,%d), whose shared memory this is in, has ended", function, line, block_x(rank), kgen_here.block_y);
  if (begun) return;
  fail("%s (line %d): block (%d,%d), whose shared memory this is in, may not have begun: no cluster_start or cluster_sync before", function, line, block_x(rank), kgen_here.block_y);
}

inline void Machine::reach(int rank, const char* function, int line) {
  must_run(rank, function, line);
  if (rank == this->rank()) return;
  auto& reached = warp_->reached;
  if (reached.stamp.time != warp_->syncs) reached.stamp = {};  // whoever knows of this time knows of those before
  reached.stamp.join({warp_->syncs, 1u << kgen_here.thread % warp_size});
  reached.thread = kgen_here.thread;
  reached.line = line;
  reached.function = function;
}

inline void Machine::check_reached(int rank) {
  const int all = static_cast<int>(warps.size());
  Clock known;
  for (int i = first_warp(rank); i < end_warp(rank); i++) known.join(warps[static_cast<size_t>(i)].clock, all, barriers.count());
  for (int i = 0; i < all; i++) {
    const auto& reached = warps[static_cast<size_t>(i)].reached;
    const Stamp& seen = known.of[i];
    if (rank_of(i * warp_size) == rank || !reached.stamp.lanes || seen.time > reached.stamp.time) continue;
    if (seen.time == reached.stamp.time && !(reached.stamp.lanes & ~seen.lanes)) continue;
    fail("the block ends, but %s (line %d) of %s in its shared memory may come later: no thread here has waited for it", reached.function, reached.line,
         name_thread(reached.thread).text);
  }
  for (int i = 0; i < barriers.count(); i++) {
    const Barrier& b = barriers[i];
    if (b.rank != rank && known.of[barrier_clock + i].time < b.given) {
      fail("the block ends, but shared_copy_to (line %d) may not have read its shared memory yet: no thread here is known to follow a wait for it", b.given_line);
    }
  }
}

inline void arrive_at(uint32_t address, int bytes, const char* function, int line) {
  const Machine::Place at = machine.place_at(address, function, line, 8, 8);
  machine.reach(at.rank, function, line);
  arrive(barrier_at(at, function, line), bytes, function, line);
}

}  // namespace kgen_emulator

extern "C" {

void kgen_refuse_of_cluster(uint32_t address, const char* function, int line) { kgen_emulator::refuse_of_cluster(address, function, line); }
uint32_t kgen_shared_of(uint32_t address, int rank, int line) {
  using namespace kgen_emulator;
  machine.shared_at(address, "shared_of", line, 0, 1);
  if (rank < 0 || rank >= machine.cluster()) machine.fail("shared_of (line %d): rank %d is not one of the cluster's %d", line, rank, machine.cluster());
  return address + (static_cast<uint32_t>(rank + 1) << rank_bit);
}

void kgen_barrier_arrive_at(uint32_t address, int line) { kgen_emulator::arrive_at(address, 0, "barrier_arrive_at", line); }
void kgen_barrier_arrive_expecting_at(uint32_t address, int bytes, int line) { kgen_emulator::arrive_at(address, bytes, "barrier_arrive_expecting_at", line); }

}  // extern "C"
