// The border between a kernel's library and the host: what emulator.hpp calls
// and host.cpp defines. `line` is the line of the kernel's source.
#pragma once
#include <stdint.h>

extern "C" {

// What the running CUDA thread sees of itself.
struct KgenHere {
  int thread, block_x, block_y, grid_x;  // thread: through the cluster
  unsigned char* shared;                 // the block's dynamic shared memory
  int rank, first_thread;                // the block's, of the cluster
};
extern KgenHere kgen_here;

void kgen_wait_for_previous_kernel();
void kgen_sync_threads(int line);
void kgen_sync_warp(int line);
uint32_t kgen_shared_address(const void* p, int line);
void kgen_cp_async_16(uint32_t dst, const void* src, bool valid, int line);
void kgen_cp_async_commit();
void kgen_cp_async_wait(int pending);
void kgen_ldmatrix_x4(uint32_t* r, uint32_t address, int line);
void kgen_ldmatrix_x4_trans(uint32_t* r, uint32_t address, int line);
void kgen_mma_bf16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, int line);
void kgen_mma_fp16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, int line);
float kgen_shuffle_xor(float x, int lane_mask, int line);
// Check a 16-byte access that the kernel is about to make.
void kgen_load_16(const void* p, int line);
void kgen_store_16(void* p, int line);


// ---- family sm90 ----
// One product of a warpgroup as a thread issues it.
struct KgenWgmma {
  float* d;           // columns / 2 registers
  const uint32_t* a;  // 4 registers; null: from shared memory
  uint64_t a_descriptor, b_descriptor;
  int columns;
  bool bf16, accumulate;
  bool b_rows;  // b has rows along the inner dimension
};
int kgen_elected();  // lane of the warp
void kgen_barrier_init(uint32_t barrier, int count, int line);
void kgen_barrier_init_fence();
void kgen_barrier_arrive(uint32_t barrier, int line);
void kgen_barrier_arrive_expecting(uint32_t barrier, int bytes, int line);
void kgen_barrier_wait(uint32_t barrier, int parity, int line);
void kgen_barrier_arrive_at(uint32_t barrier, int line);
void kgen_barrier_arrive_expecting_at(uint32_t barrier, int bytes, int line);
void kgen_cluster_sync(int line);
void kgen_cluster_start(int line);
void kgen_refuse_of_cluster(uint32_t address, const char* function, int line);  // where it is an address of the cluster
uint32_t kgen_shared_of(uint32_t address, int rank, int line);
void kgen_named_barrier(int id, int threads, bool wait, int line);
void kgen_stmatrix_x4(uint32_t address, const uint32_t* r, int line);
void kgen_tensor_map_acquire(const void* map, int line);
void kgen_tensor_copy(uint32_t dst, const void* map, uint32_t barrier, int x, int y, int z, int w, int v, int line);
void kgen_tensor_copy_to_both(uint32_t dst, const void* map, uint32_t barrier, int x, int y, int z, int w, int v, int line);
void kgen_shared_copy_to(uint32_t dst, uint32_t src, int bytes, uint32_t barrier, int line);
void kgen_store_8_async(uint32_t address, uint64_t x, uint32_t barrier, int line);
void kgen_fence_async_shared();
void kgen_set_registers(int count, bool take, int line);
void kgen_wgmma(const KgenWgmma* operands, int line);
void kgen_wgmma_fence(int line);
void kgen_wgmma_commit(int line);
void kgen_wgmma_wait(int pending, int line);

}  // extern "C"
