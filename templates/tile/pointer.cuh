// Typed views of the launch parameters, whose addresses have no types.
#pragma once
#include "../ptx/sm80.cuh"

namespace kgen {

template <class T>
__device__ __forceinline__ const T* pointer(const void* p) { return static_cast<const T*>(p); }

}  // namespace kgen
