// Integers across a warp and atomic operations on them, one named function each, for kernels that
// make lists. The emulator (templates/emu) has the same functions.
#pragma once
#include "sm80.cuh"
#ifndef KGEN_EMULATOR

namespace ptx {

// ---- across a warp ----
// The lanes in which x holds, a bit each.
__device__ __forceinline__ uint32_t ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
// The lanes whose x is this lane's.
__device__ __forceinline__ uint32_t match(int x) { return __match_any_sync(0xffffffffu, x); }
__device__ __forceinline__ long long shuffle_xor(long long x, int lane_mask) { return __shfl_xor_sync(0xffffffffu, x, lane_mask); }

// ---- bits ----
__device__ __forceinline__ int count_bits(uint32_t x) { return __popc(x); }
// How many bits x takes: the logarithm of x + 1, rounded up.
__device__ __forceinline__ int bit_length(uint32_t x) { return 32 - __clz(static_cast<int>(x)); }

// ---- atomic operations, each of which returns what was there ----
__device__ __forceinline__ int atomic_add(int* p, int x) { return atomicAdd(p, x); }
__device__ __forceinline__ int atomic_or(int* p, int x) { return atomicOr(p, x); }
__device__ __forceinline__ int atomic_min(int* p, int x) { return atomicMin(p, x); }
__device__ __forceinline__ int atomic_max(int* p, int x) { return atomicMax(p, x); }
// Puts x where there is expected.
__device__ __forceinline__ int atomic_exchange_if(int* p, int expected, int x) { return atomicCAS(p, expected, x); }

}  // namespace ptx
#endif  // KGEN_EMULATOR
