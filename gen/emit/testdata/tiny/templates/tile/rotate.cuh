// Rotation.
#pragma once
#include "../abi.cuh"

namespace kgen {

#if KGEN_ROPE

__device__ float rotate(float x, float angle) {
#if KGEN_INTERLEAVED
  return -x * angle;
#else
  return x * angle;
#endif
}

#endif

}  // namespace kgen
