// Clusters: the shared memory of another block.
#pragma once
#include "transfer.hpp"

namespace kgen_emulator {

// A peer's address: the rank of its block, counted from 1, above that of a block's own.
constexpr uint32_t peer_shift = 24;

// Some bytes of a block's memory.
struct PeerMemory {
  int rank;
  uint32_t offset;
  unsigned char* at;
};

// The bytes at an address that peer_address() gave, checked.
inline PeerMemory peer_at(uint32_t address, const char* function, int line, uint32_t bytes) {
  const uint32_t own = address & ((1u << peer_shift) - 1);
  const int rank = static_cast<int>(address >> peer_shift) - 1;
  if (rank < 0 || rank >= kgen_here.cluster) machine.fail("%s (line %d): 0x%x is no address that peer_address gave", function, line, address);
  if (own % bytes) machine.fail("%s (line %d): shared address 0x%x is not a multiple of %u", function, line, own, bytes);
  Block& b = machine.blocks[static_cast<size_t>(rank)];
  if (own - shared_base + size_t{bytes} > b.shared.size()) {
    machine.fail("%s (line %d): %u bytes at offset %u are outside of shared memory (%zu bytes)", function, line, bytes, own - shared_base, b.shared.size());
  }
  if (b.returned == machine.threads()) machine.fail("%s (line %d): the block of rank %d, whose shared memory this is, has ended", function, line, rank);
  return {rank, own - shared_base, b.shared.begin() + (own - shared_base)};
}

// The thread writes there now: the block must know of it when it ends.
inline void touch(const PeerMemory& p) {
  if (p.rank == kgen_here.rank) return;
  const Moment now = machine.now();
  machine.blocks[static_cast<size_t>(p.rank)].peers.of[now.warp()].join({now.syncs, 1u << now.thread % warp_size});
}

}  // namespace kgen_emulator

extern "C" {

uint32_t kgen_peer_address(uint32_t address, int rank, int line) {
  using namespace kgen_emulator;
  if (rank < 0 || rank >= kgen_here.cluster) machine.fail("peer_address (line %d): there is no rank %d in a cluster of %d blocks", line, rank, kgen_here.cluster);
  machine.shared_at(address, "peer_address", line, 1, 1);
  return address | static_cast<uint32_t>(rank + 1) << peer_shift;
}

void kgen_peer_barrier_arrive(uint32_t address, int line) {
  using namespace kgen_emulator;
  const PeerMemory p = peer_at(address, "peer_barrier_arrive", line, 8);
  touch(p);
  arrive(barrier_of(p.rank, p.at, p.offset, "peer_barrier_arrive", line), 0, "peer_barrier_arrive", line);
}

void kgen_peer_store_16(uint32_t dst, const void* x, int line) {
  using namespace kgen_emulator;
  const PeerMemory p = peer_at(dst, "peer_store_16", line, 16);
  machine.check(machine.blocks[static_cast<size_t>(p.rank)].shadow.write(p.offset / 16, machine.now()), "peer_store_16", line, "writes", p.at);
  touch(p);
  memcpy(p.at, x, 16);
  machine.counters.peer_store_bytes += 16;
}

void kgen_peer_store_async_16(uint32_t dst, const void* x, uint32_t barrier, int line) {
  using namespace kgen_emulator;
  const char* const name = "peer_store_async_16";
  const PeerMemory p = peer_at(dst, name, line, 16), at = peer_at(barrier, name, line, 8);
  if (p.rank != at.rank) machine.fail("%s (line %d): it writes to the block of rank %d and counts towards a barrier of rank %d", name, line, p.rank, at.rank);
  const int i = barrier_of(at.rank, at.at, at.offset, name, line);
  Barrier& b = machine.barriers[i];
  machine.check(machine.blocks[static_cast<size_t>(p.rank)].shadow.async_write(p.offset / 16, machine.now(), i, b.phase), name, line, "writes", p.at);
  memset(p.at, poison, 16);
  b.copied = b.phase + 1;
  b.copy_line = line;
  PeerStore s{p.rank, p.offset, {}, i, b.phase, kgen_here.thread, line};
  memcpy(s.x, x, sizeof s.x);
  machine.counters.peer_store_bytes += sizeof s.x;
  if (machine.early && machine.random().below(2)) return land(s);
  machine.busy = 1;
  machine.peer_stores.push_back(s);
  machine.busy = 0;
}

}  // extern "C"
