// The border between a kernel's library and the host: what emulator.hpp calls
// and host.cpp defines. `line` is the line of the kernel's source.
#pragma once
#include <stdint.h>

extern "C" {

// What the running CUDA thread sees of itself.
struct KgenHere {
  int thread, block_x, block_y, grid_x;
  unsigned char* shared;  // the block's dynamic shared memory
};
extern KgenHere kgen_here;

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

}  // extern "C"
