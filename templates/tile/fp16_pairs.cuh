// Pairs of dimensions that rotate as fp16, two in an instruction (sm90). Terms, products and results
// have 11 bits.
#pragma once
#include "rotate.cuh"

namespace kgen {

// (cos, sin) of eight pairs' angles, those of pairs 2i and 2i + 1 in the i-th.
struct Fp16Terms {
  uint32_t cos[4], sin[4];

  __device__ __forceinline__ void set(int i, float4 two) { cos[i] = ptx::pack<ptx::fp16>(two.x, two.z), sin[i] = ptx::pack<ptx::fp16>(two.y, two.w); }
  __device__ __forceinline__ Fp16Terms load() const {
    const uint4 c = ptx::load_16(cos), s = ptx::load_16(sin);
    return {{c.x, c.y, c.z, c.w}, {s.x, s.y, s.z, s.w}};
  }
};

// Those of the sums of two angles each.
__device__ __forceinline__ Fp16Terms add_angles(const Fp16Terms& a, const Fp16Terms& b) {
  Fp16Terms sum;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum.cos[i] = ptx::fp16_multiply_add(a.cos[i], b.cos[i], ptx::fp16_negate(ptx::fp16_multiply(a.sin[i], b.sin[i])));
    sum.sin[i] = ptx::fp16_multiply_add(a.sin[i], b.cos[i], ptx::fp16_multiply(a.cos[i], b.sin[i]));
  }
  return sum;
}

// Rotates the pairs (x, y), in place.
__device__ __forceinline__ void rotate_fp16(uint32_t (&x)[4], uint32_t (&y)[4], const Fp16Terms& angles) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t rotated = ptx::fp16_multiply_add(x[i], angles.cos[i], ptx::fp16_negate(ptx::fp16_multiply(y[i], angles.sin[i])));
    y[i] = ptx::fp16_multiply_add(y[i], angles.cos[i], ptx::fp16_multiply(x[i], angles.sin[i]));
    x[i] = rotated;
  }
}

}  // namespace kgen
