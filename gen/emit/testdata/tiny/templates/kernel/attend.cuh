// A made-up attend, small enough for a golden file.
#pragma once
#include "../tile/item.cuh"
#include "../tile/rotate.cuh"

namespace kgen {

template <class Config>
__device__ __forceinline__ void attend(const AttendParams& params) {
  const Item& mine = item(params, 0);  // Copy and Run are words of a comment here
  if (mine.slot != FINAL) return;
#if KGEN_PREFILL
  // prefill only
#else
  // extend only
#endif
#if !KGEN_CAUSAL
  // not causal
#endif
}

}  // namespace kgen
