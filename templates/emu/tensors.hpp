// State of tensor maps, and of copies that mbarriers count.
#pragma once
#include <stdint.h>
#include <string.h>

namespace kgen_emulator {

constexpr int tensor_rank = 5;

// A tensor map as gen/emulate encodes it, 128 bytes.
struct TensorMap {
  char name[8];
  uint64_t base;
  int64_t dims[tensor_rank], strides[tensor_rank - 1];  // elements, bytes
  int32_t box[tensor_rank];
  uint8_t reserved[12];
  uint64_t checksum;  // FNV-1a of what is before

  bool whole() const {
    if (memcmp(name, "kgen map", sizeof name) != 0) return false;
    const unsigned char* p = reinterpret_cast<const unsigned char*>(this);
    uint64_t sum = 0xcbf29ce484222325u;
    for (int i = 0; i < 120; i++) sum = (sum ^ p[i]) * 0x100000001b3u;
    return sum == checksum;
  }
  int rows() const {
    int rows = 1;
    for (int i = 1; i < tensor_rank; i++) rows *= box[i];
    return rows;
  }
};
static_assert(sizeof(TensorMap) == 128, "gen/emulate writes 128 bytes");

constexpr int tensor_row = 128;  // bytes of a box's row, 64 elements

// A copy, counted by an mbarrier, of a box of a tensor, of a block's shared memory or of a register.
constexpr int of_tensor = -1, of_register = -2;
struct BulkCopy {
  TensorMap map;
  int at[tensor_rank];
  int from_rank;       // whose shared memory it reads, or of_tensor or of_register
  uint32_t from;       // offset there
  int rank;            // whose shared memory it writes
  uint32_t dst, bytes; // offset there
  int barrier;         // index
  int line;
  const char* function;
  int thread;
  uint32_t phase;      // of the barrier, that waits for it
  uint64_t value;      // of the register
};

}  // namespace kgen_emulator
