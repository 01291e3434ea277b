// Work items.
#pragma once
#include "../abi.cuh"
#include "rotate.cuh"
#if KGEN_WINDOW
#include "window.cuh"
#endif

namespace kgen {

__device__ const Item& item(const AttendParams& params, int i) { return static_cast<const Item*>(params.items)[i]; }

}  // namespace kgen
