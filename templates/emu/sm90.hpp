// The functions of ptx/sm90.cuh. Included by emulator.hpp.
#pragma once

namespace ptx {

// ---- mbarriers ----
inline void barrier_init(uint32_t barrier, int count, int line = __builtin_LINE()) { kgen_barrier_init(barrier, count, line); }
inline void barrier_init_fence() { kgen_barrier_init_fence(); }
inline void barrier_arrive(uint32_t barrier, int line = __builtin_LINE()) { kgen_barrier_arrive(barrier, line); }
inline void barrier_arrive_expecting(uint32_t barrier, int bytes, int line = __builtin_LINE()) {
  kgen_barrier_arrive_expecting(barrier, bytes, line);
}
inline void barrier_wait(uint32_t barrier, int parity, int line = __builtin_LINE()) { kgen_barrier_wait(barrier, parity, line); }
inline void named_barrier_sync(int id, int threads, int line = __builtin_LINE()) { kgen_named_barrier(id, threads, true, line); }
inline void named_barrier_arrive(int id, int threads, int line = __builtin_LINE()) { kgen_named_barrier(id, threads, false, line); }

inline bool elect(int line = __builtin_LINE()) {
  kgen_shuffle_xor(0.f, 0, line);  // all lanes must be here
  return kgen_here.thread % 32 == kgen_elected();
}

inline int atomic_add(uint32_t* p, int x) { return static_cast<int>(__atomic_fetch_add(p, static_cast<uint32_t>(x), __ATOMIC_ACQ_REL)); }
inline int atomic_add_unordered(uint32_t* p, int x) { return static_cast<int>(__atomic_fetch_add(p, static_cast<uint32_t>(x), __ATOMIC_RELAXED)); }
inline void prefetch(const void* p) { (void)*static_cast<const volatile char*>(p); }
inline void prefetch_near(const void* p) { prefetch(p); }
inline void prefetch_to_keep(const void* p) { prefetch(p); }

// ---- clusters ----
inline int cluster_rank() { return kgen_here.rank; }
inline uint32_t shared_of(uint32_t address, int rank, int line = __builtin_LINE()) { return kgen_shared_of(address, rank, line); }
inline void cluster_sync(int line = __builtin_LINE()) { kgen_cluster_sync(line); }
inline void cluster_start(int line = __builtin_LINE()) { kgen_cluster_start(line); }
inline void barrier_arrive_at(uint32_t barrier, int line = __builtin_LINE()) { kgen_barrier_arrive_at(barrier, line); }
inline void barrier_arrive_if(bool arrives, uint32_t barrier, int line = __builtin_LINE()) { if (arrives) kgen_barrier_arrive(barrier, line); }
inline void barrier_arrive_expecting_at(uint32_t barrier, int bytes, int line = __builtin_LINE()) { kgen_barrier_arrive_expecting_at(barrier, bytes, line); }
inline void store_8_async(uint32_t address, int2 x, uint32_t barrier, int line = __builtin_LINE()) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  kgen_store_8_async(address, bits, barrier, line);
}

// ---- bulk copies ----
inline void tensor_map_acquire(const void* map, int line = __builtin_LINE()) { kgen_tensor_map_acquire(map, line); }
inline uint64_t evict_unchanged() { return 0; }
inline uint64_t evict_first() { return 0; }
inline void tensor_copy(uint32_t dst, const void* map, uint32_t barrier, uint64_t, int x, int y, int z, int w, int v, int line = __builtin_LINE()) {
  kgen_tensor_copy(dst, map, barrier, x, y, z, w, v, line);
}
inline void tensor_copy_to_both(uint32_t dst, const void* map, uint32_t barrier, uint64_t, int x, int y, int z, int w, int v, int line = __builtin_LINE()) {
  kgen_tensor_copy_to_both(dst, map, barrier, x, y, z, w, v, line);
}
inline void shared_copy_to(uint32_t dst, uint32_t src, int bytes, uint32_t barrier, int line = __builtin_LINE()) {
  kgen_shared_copy_to(dst, src, bytes, barrier, line);
}
inline void fence_async_shared() { kgen_fence_async_shared(); }

// ---- registers of a warpgroup ----
template <int Count>
inline void registers_take(int line = __builtin_LINE()) { kgen_set_registers(Count, true, line); }
template <int Count>
inline void registers_give(int line = __builtin_LINE()) { kgen_set_registers(Count, false, line); }

inline void stmatrix_x4(uint32_t address, const uint32_t (&r)[4], int line = __builtin_LINE()) { kgen_stmatrix_x4(address, r, line); }

// ---- matrix products of a warpgroup ----
// A descriptor has no room for the rank in an address of the cluster.
inline void own_address(uint32_t address, const char* function, int line) {
  if (address >> 24) kgen_refuse_of_cluster(address, function, line);
}
inline uint64_t matrix_descriptor(uint32_t address, int leading, int stride, int line = __builtin_LINE()) {
  own_address(address, "matrix_descriptor", line);
  const uint64_t swizzle_128 = 1ul << 62;
  return swizzle_128 | static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16 | ((address & 0x3ffff) >> 4);
}
inline uint64_t plain_matrix_descriptor(uint32_t address, int leading, int stride, int line = __builtin_LINE()) {
  own_address(address, "plain_matrix_descriptor", line);
  return static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16 | ((address & 0x3ffff) >> 4);
}
inline uint64_t descriptor_behind(uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }
inline uint64_t plain_descriptor_behind(uint64_t descriptor, int bytes, int leading, int stride) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + static_cast<uint32_t>((bytes >> 4) + (leading >> 4) * 65536);
  return static_cast<uint64_t>(static_cast<uint32_t>(descriptor >> 32) + static_cast<uint32_t>(stride >> 4)) << 32 | low;
}
inline void wgmma_fence(int line = __builtin_LINE()) { kgen_wgmma_fence(line); }
inline void wgmma_commit(int line = __builtin_LINE()) { kgen_wgmma_commit(line); }
template <int Pending>
inline void wgmma_wait(int line = __builtin_LINE()) { kgen_wgmma_wait(Pending, line); }
template <int Count>
inline void wgmma_touch(float (&)[Count]) {}

template <class T> struct IsBf16 { static constexpr bool value = false; };
template <> struct IsBf16<bf16> { static constexpr bool value = true; };

template <class T, int N>
struct Wgmma {
  static_assert(N == 16 || N == 64 || N == 128 || N == 256, "ptx/sm90.cuh has products of 16, 64, 128 and 256 columns");
  static void shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate, int line = __builtin_LINE()) {
    const KgenWgmma operands = {d, nullptr, a, b, N, IsBf16<T>::value, accumulate, true};
    kgen_wgmma(&operands, line);
  }
  static void registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate, int line = __builtin_LINE()) {
    const KgenWgmma operands = {d, a, 0, b, N, IsBf16<T>::value, accumulate, false};
    kgen_wgmma(&operands, line);
  }
  static void registers_rows(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate, int line = __builtin_LINE()) {
    const KgenWgmma operands = {d, a, 0, b, N, IsBf16<T>::value, accumulate, true};
    kgen_wgmma(&operands, line);
  }
};

}  // namespace ptx
