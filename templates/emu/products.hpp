// State of the products of warpgroups, and their arithmetic.
#pragma once
#include <stdint.h>
#include <string.h>

#include <deque>
#include <list>

#include "calls.hpp"

namespace kgen_emulator {

constexpr int product_rows = 16;  // of a warp
constexpr int product_depth = 16;
constexpr int most_columns = 256;

// What a register of an accumulator holds from a product's issue to its wait: a
// signalling NaN, which arithmetic makes a quiet one, so that writes show.
constexpr uint32_t unknown_register = 0x7FA5A5A5;

// One warp's rows of an accumulator that a product is under way for.
struct Accumulator {
  float* registers[32];  // of each lane
  int columns;
  uint64_t last;  // product
  int line;       // of the last product
  alignas(64) float value[product_rows * most_columns];
};

// One wgmma.mma_async of a warpgroup.
struct Product {
  KgenWgmma as_issued;  // by the first warp
  int line;
  uint32_t group;
  int issued = 0;               // bits: warps
  Accumulator* accumulator[4];  // of each warp
  uint16_t a[4][product_rows * product_depth];  // of each warp, where from registers
};

enum class Op;  // machine.hpp

// An instruction that the four warps of a warpgroup must all execute.
struct Step {
  Op op;
  int line;
  uint32_t path;     // the calls that lead to it
  int warp;          // that executed it first
  int executed = 0;  // warps
};
// A warp that is further ahead of its warpgroup is in a loop of its own.
constexpr size_t most_steps = 1 << 16;

struct Warpgroup {
  struct Member {
    uint64_t steps = 0;      // executed
    uint64_t issued = 0;     // products
    uint32_t committed = 0;  // groups
    uint32_t retired = 0;    // groups
    bool fenced = false;     // since the last wait
    int line = 0;            // of the last product
    int pending = 0;         // groups, of the wait where it is
    std::list<Accumulator> accumulators;  // that products are under way for
  } member[4];
  std::deque<Step> steps;        // that not all warps have executed
  uint64_t together = 0;         // steps before the first of these
  std::deque<Product> products;  // that are not performed
  uint64_t performed = 0;        // products before the first of these

  // May a wait of this member end: has every warp issued its products?
  bool ready(int m) const {
    const Member& x = member[m];
    for (const Product& p : products) {
      if (p.group + static_cast<uint32_t>(x.pending) >= x.committed) return true;
      if (p.issued != 15) return false;
    }
    return true;
  }
};

// sum += a * b, or a * b: of a 16 rows of 16, of b 16 rows of N, of sum 16 rows of N.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define KGEN_WIDE __attribute__((target_clones("avx2", "default")))  // chosen when the process starts
#else
#define KGEN_WIDE
#endif
KGEN_WIDE inline void multiply(float* sum, const float* a, const float* b, int n, bool accumulate) {
  constexpr int columns = 32;
  typedef float Block __attribute__((vector_size(columns * sizeof(float)), aligned(64)));
  int j = 0;
  for (; j + columns <= n; j += columns) {
    for (int i = 0; i < product_rows; i++) {
      Block s{};
      if (accumulate) memcpy(&s, sum + i * n + j, sizeof s);
      for (int k = 0; k < product_depth; k++) {
        Block column;
        memcpy(&column, b + k * n + j, sizeof column);
        s += a[i * product_depth + k] * column;
      }
      memcpy(sum + i * n + j, &s, sizeof s);
    }
  }
  for (; j < n; j++) {
    for (int i = 0; i < product_rows; i++) {
      float s = accumulate ? sum[i * n + j] : 0.f;
      for (int k = 0; k < product_depth; k++) s += a[i * product_depth + k] * b[k * n + j];
      sum[i * n + j] = s;
    }
  }
}

}  // namespace kgen_emulator
