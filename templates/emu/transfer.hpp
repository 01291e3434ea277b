// Bulk tensor copies.
#pragma once
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

// Performs a copy: what lies outside the tensor becomes zeros.
inline void land(const TensorCopy& c) {
  const int lander = kgen_here.thread;
  kgen_here.thread = c.thread;  // whom a message names
  machine.doing = c.function;
  machine.doing_line = c.line;
  unsigned char* shared = machine.shared[c.rank].begin();
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
  machine.doing = nullptr;
  const int bytes = c.map.rows() * tensor_row;
  machine.counters.tensor_copy_bytes += static_cast<uint64_t>(bytes);
  Barrier& b = machine.barriers[c.barrier];
  const Machine::Name where = machine.of_block(b.rank);
  if (b.phase != c.phase) {
    machine.fail("%s (line %d): phase %u of the barrier at byte %u%s (initialised on line %d), on which the copy was to complete, ended without it: it expected too few bytes",
                 c.function, c.line, c.phase, b.offset, where.text, b.line);
  }
  b.bytes -= bytes;
  if (b.bytes < -most_bytes) machine.fail("%s (line %d): more bytes than the barrier at byte %u%s can count", c.function, c.line, b.offset, where.text);
  end_phase(c.barrier);
  kgen_here.thread = lander;
}

// Begins a copy to the shared memory of one block: dst is an offset there.
inline void start_copy(const TensorCopy& c) {
  Barrier& b = machine.barriers[c.barrier];
  const uint32_t bytes = static_cast<uint32_t>(c.map.rows()) * tensor_row;
  for (uint32_t at = c.dst; at < c.dst + bytes; at += 16) {
    const Conflict found = machine.shadow.tensor_write(machine.cell(c.rank, at), machine.now(), c.barrier, b.phase);
    machine.check(found, c.function, c.line, "writes", c.rank, at);
  }
  memset(machine.shared[c.rank].begin() + c.dst, poison, bytes);
  b.copied = b.phase + 1;
  b.copy_line = c.line;
  if (machine.early && machine.random().below(2)) return land(c);
  machine.busy = 1;
  machine.tensor_copies.push_back(c);
  machine.busy = 0;
}

// The barrier at this own address, in block `rank`, on which a copy may complete: its index.
inline int barrier_of_copy(int rank, uint32_t address, const char* function, int line) {
  const int i = barrier_at({rank, address - shared_base}, function, line);
  const Barrier& b = machine.barriers[i];
  if (!b.fenced) {
    machine.fail("%s (line %d): %s initialised the barrier at byte %u (line %d) with no barrier_init_fence afterwards", function, line,
                 machine.name_thread(b.thread).text, b.offset, b.line);
  }
  return i;
}

inline bool Machine::land_one() {
  if (tensor_copies.empty()) return false;
  const auto chosen = tensor_copies.begin() + random_.below(static_cast<int>(tensor_copies.size()));
  const TensorCopy c = *chosen;
  tensor_copies.erase(chosen);
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
  const int i = barrier_of_copy(rank, barrier, "tensor_copy", line);
  const TensorMap m = read_acquired_map(map, "tensor_copy", line);
  machine.shared_at(dst, "tensor_copy", line, static_cast<uint32_t>(m.rows()) * tensor_row, 128);
  start_copy({m, {x, y, z, w, v}, dst - shared_base, rank, i, machine.barriers[i].phase, kgen_here.thread, line, "tensor_copy"});
}

// Two copies, which land each in its time.
void kgen_tensor_copy_to_both(uint32_t dst, const void* map, uint32_t barrier, int x, int y, int z, int w, int v, int line) {
  using namespace kgen_emulator;
  const char* const function = "tensor_copy_to_both";
  if (machine.cluster() == 1) machine.fail("%s (line %d): the block is in no cluster of two", function, line);
  machine.shared_at(barrier, function, line, 8, 8);
  const TensorMap m = read_acquired_map(map, function, line);
  machine.shared_at(dst, function, line, static_cast<uint32_t>(m.rows()) * tensor_row, 128);
  for (int rank = 0; rank < machine.cluster(); rank++) {
    machine.must_run(rank, function, line);
    const int i = barrier_of_copy(rank, barrier, function, line);
    start_copy({m, {x, y, z, w, v}, dst - shared_base, rank, i, machine.barriers[i].phase, kgen_here.thread, line, function});
  }
}

void kgen_fence_async_shared() { kgen_emulator::machine.shadow.fence(kgen_here.thread, false); }
void kgen_fence_async_cluster() { kgen_emulator::machine.shadow.fence(kgen_here.thread, true); }

}  // extern "C"
