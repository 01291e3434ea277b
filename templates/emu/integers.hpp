// The functions of ptx/integers.cuh. Included by emulator.hpp.
#pragma once

inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }

namespace ptx {

// ---- across a warp ----
inline uint32_t shuffle_bits(uint32_t x, int lane_mask, int line) { return shuffle(static_cast<int>(x), lane_index() ^ lane_mask, line); }
inline uint32_t ballot(bool x, int line = __builtin_LINE()) {
  uint32_t lanes = x ? 1u << lane_index() : 0;
  for (int mask = 16; mask > 0; mask /= 2) lanes |= shuffle_bits(lanes, mask, line);
  return lanes;
}
inline uint32_t match(int x, int line = __builtin_LINE()) {
  uint32_t lanes = 0;
  for (int mask = 0; mask < 32; mask++) {
    if (shuffle_bits(static_cast<uint32_t>(x), mask, line) == static_cast<uint32_t>(x)) lanes |= 1u << (lane_index() ^ mask);
  }
  return lanes;
}
inline long long shuffle_xor(long long x, int lane_mask, int line = __builtin_LINE()) {
  const uint64_t bits = static_cast<uint64_t>(x);
  const uint64_t low = shuffle_bits(static_cast<uint32_t>(bits), lane_mask, line), high = shuffle_bits(static_cast<uint32_t>(bits >> 32), lane_mask, line);
  return static_cast<long long>(high << 32 | low);
}

// ---- bits ----
inline int count_bits(uint32_t x) { return __builtin_popcount(x); }
inline int bit_length(uint32_t x) { return x == 0 ? 0 : 32 - __builtin_clz(x); }

// ---- atomic operations: a fiber is not interrupted in one ----
inline int atomic_add(int* p, int x) {
  const int was = *p;
  *p = static_cast<int>(static_cast<uint32_t>(was) + static_cast<uint32_t>(x));
  return was;
}
inline int atomic_or(int* p, int x) {
  const int was = *p;
  *p |= x;
  return was;
}
inline int atomic_min(int* p, int x) {
  const int was = *p;
  *p = min(was, x);
  return was;
}
inline int atomic_max(int* p, int x) {
  const int was = *p;
  *p = max(was, x);
  return was;
}
inline int atomic_exchange_if(int* p, int expected, int x) {
  const int was = *p;
  if (was == expected) *p = x;
  return was;
}

}  // namespace ptx
