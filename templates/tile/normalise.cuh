// The end of a softmax: from maximum and sum to log-sum-exp and normaliser.
#pragma once
#include "../ptx/sm80.cuh"

namespace kgen {

[[maybe_unused]] constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

// log2 of a row's sum of exponentials, from its maximum and its sum; -inf where no key was seen.
__device__ __forceinline__ float log_sum_exp2(float maximum, float sum, float scale_log2) {
  return sum > 0.f ? ptx::multiply_add(maximum, scale_log2, ptx::log2_approx(sum)) : -ptx::infinity();
}

// What a row's output is multiplied by at the end, given the log2 of its sum of
// exponentials relative to its maximum. A learned sink is one more key of weight
// exp(logit) and no value.
__device__ __forceinline__ float normaliser(float sum, float sink_exponent, bool has_sink) {
  const float total = has_sink ? sum + ptx::exp2_approx(sink_exponent) : sum;
  return sum > 0.f ? ptx::reciprocal_approx(total) : 0.f;
}

}  // namespace kgen
