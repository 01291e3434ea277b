// A made-up merge.
#pragma once
#include "../abi.cuh"

namespace kgen {

template <class Config>
__device__ __forceinline__ void merge(const MergeParams& params) {}

}  // namespace kgen
