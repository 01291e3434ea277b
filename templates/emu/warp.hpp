// Instructions of a whole warp: the last lane to arrive performs them for all.
#pragma once
#include "machine.hpp"

namespace kgen_emulator {

typedef float Row __attribute__((vector_size(32), aligned(32)));  // 8 columns

// mma.m16n8k16 with 16-bit elements. With g = lane / 4 and t = lane % 4, a lane holds
//   a[0] (g, 2t) (g, 2t+1)      a[1] (g+8, 2t) ..   a[2] (g, 2t+8) ..   a[3] (g+8, 2t+8) ..
//   b0   (2t, g) (2t+1, g)      b1   (2t+8, g) ..
//   d    (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
template <class Value>
inline void perform_mma(const Lane* lanes, Value value) {
  uint16_t a_bits[256], b_bits[128];  // row major
  float a[256], b[128];
  union {
    float at[16][8];
    Row row[16];
  } d;
  for (int lane = 0; lane < warp_size; lane++) {
    const Operands& o = lanes[lane].operands;
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; i++) memcpy(&a_bits[(g + i % 2 * 8) * 16 + t + i / 2 * 8], &o.a[i], 4);
    for (int i = 0; i < 2; i++) memcpy(&d.at[g + i * 8][t], &o.d[i * 2], 8);
    b_bits[t * 8 + g] = static_cast<uint16_t>(o.b0);
    b_bits[t * 8 + 8 + g] = static_cast<uint16_t>(o.b0 >> 16);
    b_bits[t * 8 + 64 + g] = static_cast<uint16_t>(o.b1);
    b_bits[t * 8 + 72 + g] = static_cast<uint16_t>(o.b1 >> 16);
  }
  for (int i = 0; i < 256; i++) a[i] = value(a_bits[i]);
  for (int i = 0; i < 128; i++) b[i] = value(b_bits[i]);
  for (int i = 0; i < 16; i++) {
    Row sum = d.row[i];
    for (int k = 0; k < 16; k++) {
      Row column;
      memcpy(&column, &b[k * 8], sizeof column);
      sum += a[i * 16 + k] * column;
    }
    d.row[i] = sum;
  }
  for (int lane = 0; lane < warp_size; lane++) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 2; i++) memcpy(&lanes[lane].operands.d[i * 2], &d.at[g + i * 8][t], 8);
  }
}

template <class Value>
inline void mma(Op op, float* d, const uint32_t* a, uint32_t b0, uint32_t b1, int line, Value value) {
  Operands& o = machine.lane().operands;
  o.d = d;
  o.a = a;
  o.b0 = b0;
  o.b1 = b1;
  if (!machine.arrive(op, line)) return;
  machine.counters.mmas++;
  perform_mma(machine.lanes_of_warp(), value);
  machine.performed();
}

// ldmatrix: lane i gives row i%8 of matrix i/8. Of each matrix lane i receives
// elements 2(i%4), 2(i%4)+1 of row i/4; transposed: of column i/4.
inline void ldmatrix(Op op, uint32_t* r, uint32_t address, int line) {
  Operands& o = machine.lane().operands;
  o.r = r;
  o.address = address;
  if (!machine.arrive(op, line)) return;
  machine.counters.ldmatrices++;
  const bool transposed = op == Op::ldmatrix_x4_trans;
  const int performer = kgen_here.thread;
  const Lane* lanes = machine.lanes_of_warp();
  uint16_t rows[4][8][8];
  for (int lane = 0; lane < warp_size; lane++) {
    kgen_here.thread = (performer & ~31) + lane;  // whom a message names
    const uint32_t at = lanes[lane].operands.address;
    const unsigned char* p = machine.shared_at(at, name(op), line);
    machine.check(machine.shadow.read(machine.cell(at), machine.now()), name(op), line, "reads", p);
    memcpy(rows[lane / 8][lane % 8], p, 16);
  }
  kgen_here.thread = performer;
  for (int lane = 0; lane < warp_size; lane++) {
    uint32_t* out = lanes[lane].operands.r;
    const int g = lane / 4, t = lane % 4 * 2;
    for (int m = 0; m < 4; m++) {
      const auto& x = rows[m];
      uint32_t low = transposed ? x[t][g] : x[g][t], high = transposed ? x[t + 1][g] : x[g][t + 1];
      out[m] = low | high << 16;
    }
  }
  machine.performed();
}

// stmatrix: as ldmatrix, the other way.
inline void stmatrix(uint32_t address, const uint32_t* r, int line) {
  Operands& o = machine.lane().operands;
  o.a = r;
  o.address = address;
  if (!machine.arrive(Op::stmatrix_x4, line)) return;
  const int performer = kgen_here.thread;
  const Lane* lanes = machine.lanes_of_warp();
  for (int lane = 0; lane < warp_size; lane++) {
    kgen_here.thread = (performer & ~31) + lane;  // whom a message names, and who has written
    const uint32_t at = lanes[lane].operands.address;
    unsigned char* p = machine.shared_at(at, name(Op::stmatrix_x4), line);
    machine.check(machine.shadow.write(machine.cell(at), machine.now()), name(Op::stmatrix_x4), line, "writes", p);
    for (int t = 0; t < 4; t++) memcpy(p + 4 * t, &lanes[lane % 8 * 4 + t].operands.a[lane / 8], 4);
    machine.counters.shared_store_bytes += 16;
  }
  kgen_here.thread = performer;
  machine.performed();
}

inline float bf16_value(uint32_t h) {
  uint32_t u = h << 16;
  float x;
  memcpy(&x, &u, 4);
  return x;
}

inline float fp16_value(uint32_t h) {
  uint32_t sign = (h & 0x8000u) << 16, magnitude = (h & 0x7fffu) << 13;
  float x;
  memcpy(&x, &magnitude, 4);
  x *= 0x1p112f;
  uint32_t u;
  memcpy(&u, &x, 4);
  u = magnitude >= 0x0f800000u ? magnitude + 0x70000000u : u;  // infinity, NaN
  u |= sign;
  memcpy(&x, &u, 4);
  return x;
}

}  // namespace kgen_emulator

extern "C" {

void kgen_sync_warp(int line) {
  using namespace kgen_emulator;
  if (!machine.arrive(Op::sync_warp, line)) return;
  machine.counters.warp_barriers++;
  machine.performed();
}
float kgen_shuffle_xor(float x, int lane_mask, int line) {
  using namespace kgen_emulator;
  Operands& o = machine.lane().operands;
  o.x = x;
  o.lane_mask = lane_mask;
  if (lane_mask < 0 || lane_mask >= warp_size) machine.fail("shuffle_xor (line %d): lane mask %d is not 0 to 31", line, lane_mask);
  if (machine.arrive(Op::shuffle_xor, line)) {
    machine.counters.shuffles++;
    float sent[warp_size];
    Lane* lanes = machine.lanes_of_warp();
    for (int lane = 0; lane < warp_size; lane++) sent[lane] = lanes[lane].operands.x;
    for (int lane = 0; lane < warp_size; lane++) {
      Operands& receiver = lanes[lane].operands;
      receiver.x = sent[lane ^ receiver.lane_mask];
    }
    machine.performed();
  }
  return o.x;
}
void kgen_ldmatrix_x4(uint32_t* r, uint32_t address, int line) {
  kgen_emulator::ldmatrix(kgen_emulator::Op::ldmatrix_x4, r, address, line);
}
void kgen_ldmatrix_x4_trans(uint32_t* r, uint32_t address, int line) {
  kgen_emulator::ldmatrix(kgen_emulator::Op::ldmatrix_x4_trans, r, address, line);
}
void kgen_stmatrix_x4(uint32_t address, const uint32_t* r, int line) { kgen_emulator::stmatrix(address, r, line); }
void kgen_mma_bf16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, int line) {
  using namespace kgen_emulator;
  mma(Op::mma_bf16, d, a, b0, b1, line, [](uint16_t h) { return bf16_value(h); });
}
void kgen_mma_fp16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, int line) {
  using namespace kgen_emulator;
  mma(Op::mma_fp16, d, a, b0, b1, line, [](uint16_t h) { return fp16_value(h); });
}

}  // extern "C"
