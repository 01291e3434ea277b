// The CUDA words and the ptx functions, for a C++ compiler.
//
// A generated kernel is compiled as it is, with this header before it:
//
//   g++ -std=c++17 -O1 -DKGEN_EMULATOR -include emulator.hpp -x c++ -shared -fPIC kernel.cu
//
// and the result is loaded by the host (host.cpp), which runs it.
//
// What is modelled
//   - Each CUDA thread is a fiber. It runs until it meets a barrier or an
//     instruction of the whole warp. Which warp and which lane run first is
//     drawn from a seed and drawn again at each barrier; a warp mostly runs as
//     far as it can before another one starts, so a missing barrier shows.
//   - All 32 lanes of a warp must arrive at the same sync_warp, shuffle,
//     ldmatrix or mma (the same function on the same line), and all threads of
//     a block that have not returned at the same sync_threads.
//   - cp.async reads and writes when its thread waits for its group (in some
//     blocks, for some copies, earlier). From its issue on, its destination
//     holds NaN. A block may not end with copies that nobody waited for.
//   - Shared memory is exactly as large as launched and holds NaN (0xFF bytes)
//     when a block starts. Buffers in global memory hold NaN when allocated and
//     end at a page that no one may touch: an access outside is an error.
//   - Accesses to shared memory through ptx functions are checked for races:
//     a write and another access of the same 16 bytes by different threads
//     must have a barrier of theirs between them, or what a barrier hands on
//     from one to the other (in one warp: an instruction of the whole warp).
//     A copy's destination may not be touched before its thread has waited for
//     it, nor a bulk copy's by anyone who has not waited on its mbarrier.
//   - mbarriers count arrivals and bytes; a thread that waits for a phase lets
//     others run. Where nothing can go on, the deadlock and what every warp
//     waits for are reported.
//   - A tensor copy lands when nothing else can go on (in some blocks, some
//     copies: earlier), and from its issue on its destination holds NaN. Boxes
//     land as the 128-byte swizzle permutes their 16-byte chunks by address.
//     Its block must have acquired the tensor map: a thread, with a barrier between it
//     and the one that issues the copy. (What a cache has of another map is not modelled.)
//   - A product of a warpgroup is performed when all four warps have issued it
//     and one waits for it (in some blocks, earlier): it then reads shared
//     memory. Its accumulator holds NaN from issue to wait and may not be
//     written to. Operands in shared memory may be overwritten only once each
//     warp that reads them has waited, of a 16 rows and of b all, and if ordinary
//     stores wrote them, only read after fence_async_shared. Before a product, and
//     after each wait, a wgmma_fence must come.
//     Eight rows of a permuted operand begin at a multiple of 1024 bytes.
//   - All warps of a warpgroup must execute the same products, wgmma_fences, wgmma_commits
//     and wgmma_waits, in the same order: those of one line and, in a library that is not
//     optimized, by the same calls, each of which is a copy of its own to a GPU's compiler.
//   - registers_take and registers_give share out the registers of a block, the same
//     number to all four warps of a warpgroup.
//   - elect chooses a lane that is drawn from the seed, never lane 0.
//   - Two blocks of a cluster run together, each with its own threads, barriers,
//     registers and shared memory; now and then one of them first as far as it can.
//     Addresses of the cluster, which shared_of makes, and a block's own are not
//     taken for each other. Nothing may reach the other block's shared memory
//     unless a cluster_start or cluster_sync says that the block has begun, and, for barriers, come
//     this far (by cluster_start only with barrier_init_fence); nor once it has ended, and before it ends some thread of it must
//     have waited for what reaches it.
//     tensor_copy_to_both is a copy to each block, which lands in its own time.
//   - store_8_async lands as a tensor copy does, and whoever waits for its barrier's phase knows of it.
//   - shared_copy_to lands as a tensor copy does. Until then it reads its source: what ordinary
//     stores wrote there needs fence_async_shared before, and may be overwritten only by who
//     knows that the barrier's phase has ended, which the other block's threads hand back by an
//     arrival; without one of those, the block may not end.
//   - Of a launch that starts before the one ahead has ended, the blocks that run first find
//     global memory as it was before that one, until they can't go on but with what
//     wait_for_previous_kernel waits for: a kernel that uses more of it gives wrong results.
//     Some thread of the launch must wait.
//   - Fragment layouts of ldmatrix and mma, alignment of 16-byte accesses,
//     rounding of pack and flushing of subnormals are those of the PTX ISA.
//
// What is not modelled
//   - Time, bank conflicts, caches, registers, memory fences and atomic operations between
//     blocks: blocks, or clusters, run one after another.
//   - Clusters of other sizes than (1,1,1) and (2,1,1), and of blocks of more than
//     512 threads; loads from the other block's shared memory.
//   - Races through plain pointers are not searched for; they show only as
//     wrong values under some seed.
//   - In an optimized library, which of the copies of one line's product a warp executes, and in
//     any the copies that a GPU's compiler makes of a loop's rounds.
//   - The fragment of a product's a is read when it is issued, and
//     wgmma_fence is not held to come after the writes to registers.
//   - mma adds its 16 products to d in order in fp32; hardware keeps more bits
//     inside one product and truncates. exp2 and log2 are those of the C library.
#pragma once
#include <stdint.h>
#include <string.h>

#include "calls.hpp"

// ---- words of CUDA C++ ----
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned __float_as_uint(float x) { unsigned r; memcpy(&r, &x, 4); return r; }
inline float __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
inline int __float_as_int(float x) { int r; memcpy(&r, &x, 4); return r; }
inline float __int_as_float(int x) { float r; memcpy(&r, &x, 4); return r; }

// ---- how the host calls a kernel ----
namespace kgen_emulator {
template <class P>
void call(void (*kernel)(P), const void* params) { kernel(*static_cast<const P*>(params)); }
template <class P>
constexpr unsigned long size(void (*)(P)) { return sizeof(P); }
// The second of the numbers in __launch_bounds__.
constexpr int min_blocks(int = 0, int blocks = 1) { return blocks; }
// The blocks of a cluster, by the numbers in __cluster_dims__; 0: not one that is modelled.
constexpr int cluster(int x = 1, int y = 1, int z = 1) { return y == 1 && z == 1 ? x : 0; }
#ifdef __OPTIMIZE__
constexpr bool optimized = true;
#else
constexpr bool optimized = false;
#endif
}  // namespace kgen_emulator
// What follows the name are the numbers in __cluster_dims__, in parentheses, and those in
// __launch_bounds__.
#define KGEN_EMULATOR_ENTRY(name, clusters, ...)                                               \
  extern "C" __attribute__((visibility("default"))) void kgen_call_##name(const void* params) { \
    kgen_emulator::call(name, params);                                                         \
  }                                                                                            \
  extern "C" __attribute__((visibility("default"))) unsigned long kgen_size_##name() {         \
    return kgen_emulator::size(name);                                                          \
  }                                                                                            \
  extern "C" __attribute__((visibility("default"))) int kgen_min_blocks_##name() {             \
    return kgen_emulator::min_blocks(__VA_ARGS__);                                             \
  }                                                                                            \
  extern "C" __attribute__((visibility("default"))) int kgen_cluster_##name() {                \
    return kgen_emulator::cluster clusters;                                                    \
  }                                                                                            \
  extern "C" __attribute__((visibility("default"))) bool kgen_optimized_##name() {             \
    return kgen_emulator::optimized;                                                           \
  }

namespace ptx {

// ---- where this thread is ----
inline int thread_index() { return kgen_here.thread - kgen_here.first_thread; }
inline int lane_index() { return kgen_here.thread % 32; }
inline int warp_index() { return thread_index() / 32; }
inline int block_x() { return kgen_here.block_x; }
inline int block_y() { return kgen_here.block_y; }
inline int grid_x() { return kgen_here.grid_x; }

// ---- barriers ----
inline void sync_threads(int line = __builtin_LINE()) { kgen_sync_threads(line); }
inline void sync_warp(int line = __builtin_LINE()) { kgen_sync_warp(line); }

// ---- kernels that follow each other: what the one ahead writes may come late ----
inline void wait_for_previous_kernel() { kgen_wait_for_previous_kernel(); }
inline void let_next_kernel_start() {}

// ---- shared memory ----
inline unsigned char* dynamic_shared() { return kgen_here.shared; }
inline uint32_t shared_address(const void* p, int line = __builtin_LINE()) { return kgen_shared_address(p, line); }

// ---- asynchronous copies, global to shared ----
inline void cp_async_16(uint32_t dst, const void* src, bool valid, int line = __builtin_LINE()) {
  kgen_cp_async_16(dst, src, valid, line);
}
inline void cp_async_commit() { kgen_cp_async_commit(); }
template <int Pending>
inline void cp_async_wait() { kgen_cp_async_wait(Pending); }

// ---- matrix fragments ----
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address, int line = __builtin_LINE()) {
  kgen_ldmatrix_x4(r, address, line);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address, int line = __builtin_LINE()) {
  kgen_ldmatrix_x4_trans(r, address, line);
}

// ---- element types ----
struct bf16 {};
struct fp16 {};

// cvt.rn.bf16.f32: to nearest even; a NaN becomes the canonical one.
inline uint32_t bf16_bits(float x) {
  uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
// cvt.rn.f16.f32, by arithmetic on the value: an addend whose last place is
// the last place of the result rounds to nearest even.
inline uint32_t fp16_bits(float x) {
  uint32_t u = __float_as_uint(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                       // below 2^-14: multiples of 2^-24
    float rounded = __uint_as_float(magnitude) + 0.5f;
    return sign | (__float_as_uint(rounded) - 0x3f000000u);
  }
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return sign | ((magnitude - 0x38000000u) >> 13);
}
inline float fp16_value(uint32_t h) {
  uint32_t sign = (h & 0x8000u) << 16, magnitude = (h & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) return __uint_as_float(sign | (magnitude + 0x70000000u));  // infinity, NaN
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude) * 0x1p112f));
}

template <class T>
uint32_t pack(float low, float high);
template <>
inline uint32_t pack<bf16>(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
template <>
inline uint32_t pack<fp16>(float low, float high) { return fp16_bits(low) | fp16_bits(high) << 16; }
template <class T>
float2 unpack(uint32_t pair);
template <>
inline float2 unpack<bf16>(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <>
inline float2 unpack<fp16>(uint32_t pair) { return make_float2(fp16_value(pair & 0xffff), fp16_value(pair >> 16)); }

// ---- pairs of fp16 ----
inline uint32_t fp16_multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  // Exact in fp64. On its way to fp16 by fp32 it is rounded to odd, which leaves the last
  // rounding what it would be of the exact value.
  auto once = [](float a, float b, float c) {
    const double exact = static_cast<double>(a) * b + c;
    float near = static_cast<float>(exact);
    if (near != exact && near - near == 0) {
      uint32_t bits = __float_as_uint(near);
      if ((near > exact) == (near > 0)) --bits;  // towards zero
      near = __uint_as_float(bits | 1);
    }
    return near;
  };
  const float2 x = unpack<fp16>(a), y = unpack<fp16>(b), z = unpack<fp16>(c);
  return pack<fp16>(once(x.x, y.x, z.x), once(x.y, y.y, z.y));
}
inline uint32_t fp16_multiply(uint32_t a, uint32_t b) {
  const float2 x = unpack<fp16>(a), y = unpack<fp16>(b);
  return pack<fp16>(x.x * y.x, x.y * y.y);  // exact in fp32 but for the rounding to fp16
}
inline uint32_t fp16_negate(uint32_t a) { return a ^ 0x80008000u; }
inline uint32_t lower_halves(uint32_t a, uint32_t b) { return (a & 0xffff) | b << 16; }
inline uint32_t upper_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }
inline uint32_t low_bits(unsigned count) { return count >= 32 ? 0xffffffffu : (1u << count) - 1; }

// ---- matrix product ----
template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int line = __builtin_LINE());
template <>
inline void mma_m16n8k16<bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int line) {
  kgen_mma_bf16(d, a, b0, b1, line);
}
template <>
inline void mma_m16n8k16<fp16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int line) {
  kgen_mma_fp16(d, a, b0, b1, line);
}

// ---- across a warp ----
inline float shuffle_xor(float x, int lane_mask, int line = __builtin_LINE()) {
  return kgen_shuffle_xor(x, lane_mask, line);
}
inline float shuffle(float x, int lane, int line = __builtin_LINE()) { return kgen_shuffle_xor(x, kgen_here.thread % 32 ^ lane, line); }
inline int shuffle(int x, int lane, int line = __builtin_LINE()) {
  float bits;
  memcpy(&bits, &x, sizeof x);
  bits = kgen_shuffle_xor(bits, kgen_here.thread % 32 ^ lane, line);
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline unsigned char* shuffle(unsigned char* x, int lane, int line = __builtin_LINE()) {
  const uint64_t bits = reinterpret_cast<uint64_t>(x);
  const uint32_t low = shuffle(static_cast<int>(bits), lane, line), high = shuffle(static_cast<int>(bits >> 32), lane, line);
  return reinterpret_cast<unsigned char*>(static_cast<uint64_t>(high) << 32 | low);
}
inline bool any(bool x, int line = __builtin_LINE()) {
  float found = x ? 1.f : 0.f;
  for (int mask = 16; mask > 0; mask /= 2) found += kgen_shuffle_xor(found, mask, line);
  return found > 0.f;
}
inline int warp_maximum(int x, int line = __builtin_LINE()) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const int other = shuffle(x, kgen_here.thread % 32 ^ mask, line);
    x = other > x ? other : x;
  }
  return x;
}

// ---- arithmetic ----
// Built-ins: most of the time of a small kernel's compilation would go into <math.h>.
// .ftz: a subnormal becomes a zero of its sign.
inline float flush(float x) {
  uint32_t u = __float_as_uint(x);
  return (u & 0x7f800000u) == 0 ? __uint_as_float(u & 0x80000000u) : x;
}
inline float exp2_approx(float x) { return flush(__builtin_exp2f(flush(x))); }
inline float log2_approx(float x) { return flush(__builtin_log2f(flush(x))); }
inline float reciprocal_approx(float x) { return flush(1.f / flush(x)); }
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float maximum(float a, float b) { return __builtin_fmaxf(a, b); }
inline float minimum_or_nan(float a, float b) { return a != a ? a : b != b ? b : __builtin_fminf(a, b); }
inline float infinity() { return __builtin_inff(); }

// ---- register pressure ----
inline int here(int x) { return x; }

// ---- wide memory accesses ----
inline uint4 load_16(const void* p, int line = __builtin_LINE()) {
  kgen_load_16(p, line);
  return *static_cast<const uint4*>(p);
}
inline void store_16(void* p, uint4 x, int line = __builtin_LINE()) {
  kgen_store_16(p, line);
  *static_cast<uint4*>(p) = x;
}
inline float4 as_floats(uint4 x) {
  return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w));
}

}  // namespace ptx

#include "sm90.hpp"
#include "integers.hpp"
