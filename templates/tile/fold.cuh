// Partial results of the same rows and of different keys, put together two at a time.
// Parts of a row's keys are folded in the order of a binary counter: of parts 0, 1, 2, ...
// 1 is folded onto 0, 3 onto 2, then both onto what 0 and 1 gave, and so on; at the end,
// what is left over, the latest first. Groups of 2^n parts can then be folded apart
// from each other, and what they give after that, for the same bits.
#pragma once
#include "normalise.cuh"

namespace kgen {

// What two results become: output * before + output * after, and the log-sum-exp, base 2.
struct Fold {
  float before, after, lse;
};

// Of results with these log-sum-exps, -inf where no key was seen.
__device__ __forceinline__ Fold fold_of(float before, float after) {
  const float maximum = ptx::maximum(before, after);
  if (maximum == -ptx::infinity()) return {0.f, 0.f, maximum};
  const float b = ptx::exp2_approx(before - maximum), a = ptx::exp2_approx(after - maximum), sum = b + a;
  const float factor = ptx::reciprocal_approx(sum);  // of 1 to 2
  return {b * factor, a * factor, maximum + ptx::log2_approx(sum)};
}

__device__ __forceinline__ float fold(const Fold& by, float before, float after) { return ptx::multiply_add(after, by.after, before * by.before); }

// Which part of its item a result is of.
struct Part {
  int number = 0;
  bool last = true;

  __device__ __forceinline__ bool alone() const { return number == 0 && last; }
  // The levels of the counter that hold a result to be folded with this one, as bits. Above
  // them, unless it is the last part, is the level that is to keep what comes out.
  __device__ __forceinline__ int levels() const { return last ? number : number & ~(number + 1); }
};

// Calls fold_with(level) for the levels whose results fold with a part's, one after the
// other, and returns the level above.
template <class FoldWith>
__device__ __forceinline__ int for_each_level(Part part, FoldWith fold_with) {
  int level = 0;
#pragma unroll 1
  for (const int levels = part.levels(); levels >> level > 0; ++level) {
    if (levels >> level & 1) fold_with(level);
  }
  return level;
}

// What a folded row's output is multiplied by at the end.
__device__ __forceinline__ float folded_normaliser(float lse2, float sink_exponent, bool has_sink) {
  return normaliser(lse2 == -ptx::infinity() ? 0.f : 1.f, has_sink ? sink_exponent - lse2 : 0.f, has_sink);
}

}  // namespace kgen
