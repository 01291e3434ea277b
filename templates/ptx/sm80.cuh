// Every instruction of the sm80 family that C++ has no word for, one named
// function each. The emulator (templates/emu) has the same functions with the
// semantics of the PTX ISA, so nothing else in the templates differs there.
#pragma once
#ifndef KGEN_EMULATOR

using uint32_t = unsigned int;
using int32_t = int;

namespace ptx {

// ---- where this thread is ----
__device__ __forceinline__ int thread_index() { return threadIdx.x; }
// Unsigned arithmetic: a quotient of an int costs three instructions more.
__device__ __forceinline__ int lane_index() { return threadIdx.x % 32; }
__device__ __forceinline__ int warp_index() { return threadIdx.x / 32; }
__device__ __forceinline__ int block_x() { return blockIdx.x; }
__device__ __forceinline__ int block_y() { return blockIdx.y; }
__device__ __forceinline__ int grid_x() { return gridDim.x; }

// ---- barriers ----
__device__ __forceinline__ void sync_threads() { __syncthreads(); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

// ---- kernels that follow each other ----
// On architectures without these instructions a launch waits for the one ahead anyway.
// Waits until the kernels that this launch depends on have ended and all that they wrote
// is visible. Returns at once in a launch that started after them.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Once every block has called it or ended, a next kernel that waits by itself may start.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- shared memory ----
// The block's dynamic shared memory, aligned to 1024 bytes.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  return shared_memory;
}
// The 32-bit address that ldmatrix and cp.async take.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- asynchronous copies, global to shared ----
// Copies 16 bytes; writes zeros and reads nothing where valid is false.
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"(dst), "l"(src), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most Pending of this thread's committed groups are under way.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- matrix fragments ----
// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i%8 of matrix i/8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// ---- element types ----
// bf16 and fp16 are tags: elements live in memory as 16 bits and in registers
// as pairs, the lower index in the lower half.
struct bf16 {};
struct fp16 {};

// Rounds to nearest even.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack<bf16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
__device__ __forceinline__ uint32_t pack<fp16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <class T>
__device__ __forceinline__ float2 unpack(uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack<bf16>(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <>
__device__ __forceinline__ float2 unpack<fp16>(uint32_t pair) {
  float low, high;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high) : "r"(pair));
  return make_float2(low, high);
}

// ---- matrix product ----
// d += a * b for a 16x16 a (row major), a 16x8 b (column major), fp32 d.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<fp16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- across a warp ----
__device__ __forceinline__ float shuffle_xor(float x, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, x, lane_mask);
}

// The value of another lane.
__device__ __forceinline__ float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
__device__ __forceinline__ int shuffle(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
__device__ __forceinline__ unsigned char* shuffle(unsigned char* x, int lane) {
  return reinterpret_cast<unsigned char*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(x), lane));
}
// Whether x holds in some lane.
__device__ __forceinline__ bool any(bool x) { return __any_sync(0xffffffffu, x); }
// The greatest x of all lanes.
__device__ __forceinline__ int warp_maximum(int x) { return __reduce_max_sync(0xffffffffu, x); }

// ---- arithmetic ----
__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float log2_approx(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float maximum(float a, float b) { return fmaxf(a, b); }
// NaN where one of them is.
__device__ __forceinline__ float minimum_or_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ---- pairs of fp16 ----
// What `pack<fp16>` makes, each half by itself; results are rounded to nearest even.
__device__ __forceinline__ uint32_t fp16_multiply(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t fp16_multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ uint32_t fp16_negate(uint32_t a) {
  uint32_t r;
  asm("neg.f16x2 %0, %1;" : "=r"(r) : "r"(a));
  return r;
}
// The lower halves of two pairs, and the upper ones.
__device__ __forceinline__ uint32_t lower_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ uint32_t upper_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

// The lowest so many bits of 32, set.
__device__ __forceinline__ uint32_t low_bits(unsigned count) { return __funnelshift_lc(0xffffffffu, 0, count); }

// ---- register pressure ----
// The same value, unknown to the compiler: what is computed from it inside a loop
// is computed there, not ahead of the loop and held in registers throughout.
__device__ __forceinline__ int here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// ---- wide memory accesses ----
__device__ __forceinline__ uint4 load_16(const void* p) { return *static_cast<const uint4*>(p); }
__device__ __forceinline__ void store_16(void* p, uint4 x) { *static_cast<uint4*>(p) = x; }
// The same bits as floats.
__device__ __forceinline__ float4 as_floats(uint4 x) {
  return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w));
}

}  // namespace ptx
#endif  // KGEN_EMULATOR
