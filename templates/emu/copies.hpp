// Asynchronous copies and 16-byte accesses.
#pragma once
#include "machine.hpp"

namespace kgen_emulator {

inline void move(Copy& c) {
  unsigned char* dst = machine.own().begin() + (c.dst - shared_base);
  machine.doing = "cp_async_16";
  machine.doing_line = c.line;
  if (c.valid) {
    memcpy(dst, c.src, 16);
    machine.counters.copy_bytes += 16;
  } else {
    memset(dst, 0, 16);
  }
  machine.doing = nullptr;
  c.landed = true;
}

inline bool in_shared(const void* p) { return machine.own().holds(reinterpret_cast<uintptr_t>(p), 1); }

inline void check_16(const void* p, const char* function, int line) {
  if (reinterpret_cast<uintptr_t>(p) % 16) machine.fail("%s (line %d): address %p is not a multiple of 16", function, line, p);
}

}  // namespace kgen_emulator

extern "C" {

uint32_t kgen_shared_address(const void* p, int line) {
  using namespace kgen_emulator;
  uintptr_t offset = reinterpret_cast<uintptr_t>(p) - machine.own().address();
  if (offset > machine.own().size()) machine.fail("shared_address (line %d): %p is not in shared memory", line, p);
  return shared_base + static_cast<uint32_t>(offset);
}

void kgen_cp_async_16(uint32_t dst, const void* src, bool valid, int line) {
  using namespace kgen_emulator;
  unsigned char* p = machine.shared_at(dst, "cp_async_16", line);
  if (valid) check_16(src, "cp_async_16", line);
  machine.check(machine.shadow.copy(machine.cell(dst), machine.now()), "cp_async_16", line, "writes", p);
  memset(p, poison, 16);
  Lane& lane = machine.lane();
  machine.busy = 1;
  lane.copies.push_back({dst, src, valid, false, lane.committed, line});
  machine.busy = 0;
  if (machine.early && machine.random().below(2)) move(lane.copies.back());
}

void kgen_cp_async_commit() {
  using namespace kgen_emulator;
  Lane& lane = machine.lane();
  if (machine.early) {
    for (Copy& c : lane.copies) {
      if (!c.landed && machine.random().below(4) == 0) move(c);
    }
  }
  lane.committed++;
}

// Groups are numbered from 0; a copy that is not committed has the number of
// the next group, which no wait reaches.
void kgen_cp_async_wait(int pending) {
  using namespace kgen_emulator;
  Lane& lane = machine.lane();
  size_t n = 0;
  while (n < lane.copies.size() && lane.copies[n].group + static_cast<uint32_t>(pending) < lane.committed) n++;
  for (size_t i = 0; i < n; i++) {
    Copy& c = lane.copies[i];
    if (!c.landed) move(c);
    machine.shadow.landed(machine.cell(c.dst), machine.now());
  }
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + static_cast<long>(n));
}

void kgen_load_16(const void* p, int line) {
  using namespace kgen_emulator;
  check_16(p, "load_16", line);
  if (in_shared(p)) {
    uint32_t offset = static_cast<uint32_t>(static_cast<const unsigned char*>(p) - machine.own().begin());
    machine.shared_at(shared_base + offset, "load_16", line);
    machine.check(machine.shadow.read(machine.cell(shared_base + offset), machine.now()), "load_16", line, "reads", p);
    machine.counters.shared_load_bytes += 16;
  } else {
    machine.counters.load_bytes += 16;
  }
}

void kgen_store_16(void* p, int line) {
  using namespace kgen_emulator;
  check_16(p, "store_16", line);
  if (in_shared(p)) {
    uint32_t offset = static_cast<uint32_t>(static_cast<unsigned char*>(p) - machine.own().begin());
    machine.shared_at(shared_base + offset, "store_16", line);
    machine.check(machine.shadow.write(machine.cell(shared_base + offset), machine.now()), "store_16", line, "writes", p);
    machine.counters.shared_store_bytes += 16;
  } else {
    machine.counters.store_bytes += 16;
  }
}

}  // extern "C"
