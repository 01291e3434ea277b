// Bulk copies: of tensors, and of shared memory to another block's; and stores that land as these do.
#pragma once
#include "clusters.hpp"
#include "sync.hpp"

namespace kgen_emulator {

// Reads and checks a tensor map.
inline TensorMap read_map(const void* map, const char* function, int line) {
  if (reinterpret_cast<uintptr_t>(map) % 64) machine.fail("%s (line %d): the tensor map's address %p is not a multiple of 64", function, line, map);
  TensorMap m;
  machine.doing = function;
  machine.doing_line = line;
  memcpy(&m, map, sizeof m);
  machine.doing = nullptr;
  if (!m.whole()) machine.fail("%s (line %d): the 128 bytes at %p are no tensor map", function, line, map);
  return m;
}

// One that the block has acquired before.
inline TensorMap read_acquired_map(const void* map, const char* function, int line) {
  const TensorMap m = read_map(map, function, line);
  const Moment now = machine.now();
  for (const auto& a : machine.blocks[machine.rank()].maps) {
    if (a.map == map && now.follows(a.thread / warp_size, a.syncs, a.thread)) return m;
  }
  machine.fail("%s (line %d): no thread of the block is known to have acquired the tensor map at %p: tensor_map_acquire does, with a barrier between", function, line, map);
}

inline uint32_t box_bytes(const TensorMap& m) { return static_cast<uint32_t>(m.rows()) * tensor_row; }

// What lies outside the tensor becomes zeros.
inline void land_box(const BulkCopy& c, unsigned char* shared) {
  for (int r = 0; r < c.map.rows(); r++) {
    const uint32_t row = c.dst + static_cast<uint32_t>(r) * tensor_row;
    alignas(16) unsigned char line[tensor_row] = {};
    int64_t from = 0;
    bool inside = true;
    for (int i = 1, places = r; i < tensor_rank; places /= c.map.box[i++]) {
      const int64_t at = int64_t{c.at[i]} + places % c.map.box[i];
      inside = inside && at >= 0 && at < c.map.dims[i];
      from += at * c.map.strides[i - 1];
    }
    const int64_t x = c.at[0], begin = x > 0 ? x : 0, end = x + 64 < c.map.dims[0] ? x + 64 : c.map.dims[0];
    if (inside && begin < end) {
      memcpy(line + (begin - x) * 2, reinterpret_cast<const void*>(c.map.base + static_cast<uint64_t>(begin * 2 + from)), static_cast<size_t>(end - begin) * 2);
    }
    for (uint32_t chunk = 0; chunk < tensor_row / 16; chunk++) {
      memcpy(shared + row + (chunk ^ (row >> 7 & 7)) * 16, line + chunk * 16, 16);
    }
  }
}

// Performs a copy.
inline void land(const BulkCopy& c) {
  const int lander = kgen_here.thread;
  kgen_here.thread = c.thread;  // whom a message names
  machine.doing = c.function;
  machine.doing_line = c.line;
  unsigned char* shared = machine.shared[c.rank].begin();
  if (c.from_rank == of_tensor) {
    land_box(c, shared);
    machine.counters.tensor_copy_bytes += c.bytes;
  } else if (c.from_rank == of_register) {
    memcpy(shared + c.dst, &c.value, c.bytes);
    machine.counters.shared_store_bytes += c.bytes;
  } else {
    memcpy(shared + c.dst, machine.shared[c.from_rank].begin() + c.from, c.bytes);
    machine.counters.shared_copy_bytes += c.bytes;
  }
  machine.doing = nullptr;
  Barrier& b = machine.barriers[c.barrier];
  const Machine::Name where = machine.of_block(b.rank);
  if (b.phase != c.phase) {
    machine.fail("%s (line %d): phase %u of the barrier at byte %u%s (initialised on line %d), on which the copy was to complete, ended without it: it expected too few bytes",
                 c.function, c.line, c.phase, b.offset, where.text, b.line);
  }
  b.bytes -= c.bytes;
  if (b.bytes < -most_bytes) machine.fail("%s (line %d): more bytes than the barrier at byte %u%s can count", c.function, c.line, b.offset, where.text);
  end_phase(c.barrier);
  kgen_here.thread = lander;
}

// Begins a copy by the running thread.
inline void start_copy(BulkCopy c) {
  Barrier& b = machine.barriers[c.barrier];
  c.thread = kgen_here.thread;
  c.phase = b.phase;
  const bool given = c.from_rank >= 0;
  for (uint32_t at = c.from; given && at < c.from + c.bytes; at += 16) {
    machine.busy = 1;
    const Conflict found = machine.shadow.copy_read(machine.cell(c.from_rank, at), machine.now(), c.barrier, b.phase);
    machine.busy = 0;
    machine.check(found, c.function, c.line, "reads", c.from_rank, at);
  }
  for (uint32_t at = c.dst; at < c.dst + c.bytes; at += 16) {
    const uint32_t cell = machine.cell(c.rank, at);
    const bool half = c.bytes == 8 && machine.cluster() > 1;
    const Conflict found = half ? machine.shadow.bulk_write_half(cell, machine.now(), c.barrier, b.phase, at % 16 ? 2 : 1)
                                : machine.shadow.bulk_write(cell, machine.now(), c.barrier, b.phase);
    machine.check(found, c.function, c.line, "writes", c.rank, at);
  }
  memset(machine.shared[c.rank].begin() + c.dst, poison, c.bytes);
  b.copied = b.phase + 1;
  b.copy_line = c.line;
  b.copy_function = c.function;
  if (given && c.from_rank != c.rank) {
    b.given = b.copied;
    b.given_line = c.line;
  }
  if (machine.early && machine.random().below(2)) return land(c);
  machine.busy = 1;
  machine.bulk_copies.push_back(c);
  machine.busy = 0;
}

// The barrier at a place, on which a copy may complete: its index.
inline int barrier_of_copy(const Machine::Place& at, const char* function, int line) {
  const int i = barrier_at(at, function, line);
  const Barrier& b = machine.barriers[i];
  if (!b.fenced) {
    machine.fail("%s (line %d): %s initialised the barrier at byte %u (line %d) with no barrier_init_fence afterwards", function, line,
                 machine.name_thread(b.thread).text, b.offset, b.line);
  }
  return i;
}

// The barrier at an address of the cluster that counts what comes to a place of the same block: its index.
inline int barrier_beside(const Machine::Place& to, uint32_t barrier, const char* function, int line) {
  const Machine::Place at = machine.place_at(barrier, function, line, 8, 8);
  if (at.rank != to.rank) {
    machine.fail("%s (line %d): the barrier is in block (%d,%d), and what it counts goes to block (%d,%d)", function, line, machine.block_x(at.rank), kgen_here.block_y,
                 machine.block_x(to.rank), kgen_here.block_y);
  }
  machine.must_run(to.rank, function, line);
  return barrier_of_copy(at, function, line);
}

inline bool Machine::land_one() {
  if (bulk_copies.empty()) return false;
  const auto chosen = bulk_copies.begin() + random_.below(static_cast<int>(bulk_copies.size()));
  const BulkCopy c = *chosen;
  bulk_copies.erase(chosen);
  land(c);
  return true;
}

}  // namespace kgen_emulator

extern "C" {

void kgen_tensor_map_acquire(const void* map, int line) {
  using namespace kgen_emulator;
  read_map(map, "tensor_map_acquire", line);
  const Moment now = machine.now();
  machine.busy = 1;
  machine.blocks[machine.rank()].maps.push_back({map, now.thread, now.syncs});
  machine.busy = 0;
}

void kgen_tensor_copy(uint32_t dst, const void* map, uint32_t barrier, int x, int y, int z, int w, int v, int line) {
  using namespace kgen_emulator;
  const int rank = machine.rank();
  machine.shared_at(barrier, "tensor_copy", line, 8, 8);
  const int i = barrier_of_copy({rank, barrier - shared_base}, "tensor_copy", line);
  const TensorMap m = read_acquired_map(map, "tensor_copy", line);
  machine.shared_at(dst, "tensor_copy", line, box_bytes(m), 128);
  start_copy({m, {x, y, z, w, v}, of_tensor, 0, rank, dst - shared_base, box_bytes(m), i, line, "tensor_copy"});
}

// Two copies, which land each in its time.
void kgen_tensor_copy_to_both(uint32_t dst, const void* map, uint32_t barrier, int x, int y, int z, int w, int v, int line) {
  using namespace kgen_emulator;
  const char* const function = "tensor_copy_to_both";
  if (machine.cluster() == 1) machine.fail("%s (line %d): the block is in no cluster of two", function, line);
  machine.shared_at(barrier, function, line, 8, 8);
  const TensorMap m = read_acquired_map(map, function, line);
  machine.shared_at(dst, function, line, box_bytes(m), 128);
  for (int rank = 0; rank < machine.cluster(); rank++) {
    machine.must_run(rank, function, line);
    const int i = barrier_of_copy({rank, barrier - shared_base}, function, line);
    start_copy({m, {x, y, z, w, v}, of_tensor, 0, rank, dst - shared_base, box_bytes(m), i, line, function});
  }
}

void kgen_shared_copy_to(uint32_t dst, uint32_t src, int bytes, uint32_t barrier, int line) {
  using namespace kgen_emulator;
  const char* const function = "shared_copy_to";
  if (bytes <= 0 || bytes % 16) machine.fail("%s (line %d): %d bytes are not 16 or a multiple", function, line, bytes);
  const uint32_t count = static_cast<uint32_t>(bytes);
  const Machine::Place to = machine.place_at(dst, function, line, count, 16);
  const int i = barrier_beside(to, barrier, function, line);
  machine.shared_at(src, function, line, count);
  start_copy({{}, {}, machine.rank(), src - shared_base, to.rank, to.offset, count, i, line, function});
}
void kgen_store_8_async(uint32_t address, uint64_t x, uint32_t barrier, int line) {
  using namespace kgen_emulator;
  const char* const function = "store_8_async";
  const Machine::Place to = machine.place_at(address, function, line, 8, 8);
  const int i = barrier_beside(to, barrier, function, line);
  start_copy({{}, {}, of_register, 0, to.rank, to.offset, 8, i, line, function, 0, 0, x});
}

void kgen_fence_async_shared() { kgen_emulator::machine.shadow.fence(kgen_here.thread); }

}  // extern "C"
