// State of tensor maps and copies.
#pragma once
#include <stdint.h>
#include <string.h>

namespace kgen_emulator {

// A tensor map as gen/emulate encodes it, 128 bytes.
struct TensorMap {
  char name[8];
  uint64_t base;
  int64_t dims[4], strides[3];  // elements, bytes
  int32_t box[4];
  uint8_t reserved[32];
  uint64_t checksum;  // FNV-1a of what is before

  bool whole() const {
    if (memcmp(name, "kgen map", sizeof name) != 0) return false;
    const unsigned char* p = reinterpret_cast<const unsigned char*>(this);
    uint64_t sum = 0xcbf29ce484222325u;
    for (int i = 0; i < 120; i++) sum = (sum ^ p[i]) * 0x100000001b3u;
    return sum == checksum;
  }
  int rows() const { return box[1] * box[2] * box[3]; }
};
static_assert(sizeof(TensorMap) == 128, "gen/emulate writes 128 bytes");

constexpr int tensor_row = 128;  // bytes of a box's row, 64 elements

struct TensorCopy {
  TensorMap map;
  int at[4];
  uint32_t dst;
  int barrier;     // index
  uint32_t phase;  // of the barrier, that waits for it
  int thread, line;
};

}  // namespace kgen_emulator
