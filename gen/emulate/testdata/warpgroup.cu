// One warpgroup's two products over keys and values that a producer warp copies
// from pages: scores = q * k', out = scores * v. Tiles are blocks of eight rows of 64
// elements, either those of the same rows or those of the same columns one behind the other.
struct Params {
  const void* q_map;  // 64 tokens of one head
  const void* k_map;  // pages of 16
  const void* v_map;
  const int* places;  // [keys / 16]: the maps' last coordinates
  float* scores;      // [64][keys]
  float* out;         // [64][dim]
  int block;          // the head's first, of a token
  int whole;          // a box has all of the head's blocks, and they are those of the same rows; or one
};

// How the blocks of so many rows lie: bytes from one to the next.
struct Blocks {
  int column, eight_rows;

  __device__ Blocks(int rows, int columns, bool whole) : column(whole ? 1024 : rows * 128), eight_rows(whole ? columns * 1024 : 1024) {}
};

template <class T, int keys, int dim>
__device__ __forceinline__ void products(const Params& p) {
  constexpr int page = 16, columns = dim / 64, row = 128;  // bytes of a row
  unsigned char* shared = ptx::dynamic_shared();
  const uint32_t q = ptx::shared_address(shared), k = q + columns * 64 * row, v = k + columns * keys * row;
  const uint32_t full = v + columns * keys * row, v_full = full + 8;
  const Blocks of_q(64, columns, p.whole), of_keys(keys, columns, p.whole);
  const int thread = ptx::thread_index(), warp = ptx::warp_index();
  if (thread == 0) {
    ptx::barrier_init(full, 1);
    ptx::barrier_init(v_full, 1);
    ptx::barrier_init_fence();
  }
  ptx::sync_threads();
  if (warp >= 4) {
    ptx::registers_give<24>();
    if (thread == 128) {
      const void* const maps[] = {p.q_map, p.k_map, p.v_map};
      for (const void* map : maps) ptx::tensor_map_acquire(map);
      const int copies = p.whole ? 1 : columns;
      ptx::barrier_arrive_expecting(full, columns * (64 + keys) * row);
      for (int c = 0; c < copies; ++c) {
        ptx::tensor_copy(q + c * of_q.column, p.q_map, full, ptx::evict_unchanged(), 0, 0, c, 0, 0);
        for (int i = 0; i < keys / page; ++i) {
          ptx::tensor_copy(k + c * of_keys.column + i * page / 8 * of_keys.eight_rows, p.k_map, full, ptx::evict_unchanged(), 0, 0, p.block + c, 0, p.places[i]);
        }
      }
      ptx::barrier_arrive_expecting(v_full, columns * keys * row);
      for (int c = 0; c < copies; ++c) {
        for (int i = 0; i < keys / page; ++i) {
          ptx::tensor_copy(v + c * of_keys.column + i * page / 8 * of_keys.eight_rows, p.v_map, v_full, ptx::evict_unchanged(), 0, 0, p.block + c, 0, p.places[i]);
        }
      }
    }
    return;
  }
  ptx::registers_take<232>();
  ptx::barrier_wait(full, 0);
  float scores[keys / 2], out[dim / 2];
  ptx::wgmma_fence();
  for (int step = 0; step < dim / 16; ++step) {
    const int column = step / 4, inside = step % 4 * 32;
    ptx::Wgmma<T, keys>::shared(scores, ptx::matrix_descriptor(q + column * of_q.column + inside, 0, of_q.eight_rows),
                                ptx::matrix_descriptor(k + column * of_keys.column + inside, 0, of_keys.eight_rows), step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(scores);
  const int lane = ptx::lane_index(), i = warp * 16 + lane / 4, j = lane % 4 * 2;
  for (int n = 0; n < keys / 8; ++n) {
    for (int e = 0; e < 4; ++e) p.scores[(i + e / 2 * 8) * keys + n * 8 + j + e % 2] = scores[n * 4 + e];
  }
  ptx::barrier_wait(v_full, 0);
  ptx::wgmma_fence();
  for (int step = 0; step < keys / 16; ++step) {
    const float* s = scores + step * 8;
    const uint32_t a[4] = {ptx::pack<T>(s[0], s[1]), ptx::pack<T>(s[2], s[3]), ptx::pack<T>(s[4], s[5]), ptx::pack<T>(s[6], s[7])};
    ptx::Wgmma<T, dim>::registers(out, a, ptx::matrix_descriptor(v + step * 2 * of_keys.eight_rows, of_keys.column, of_keys.eight_rows), step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(out);
  for (int n = 0; n < dim / 8; ++n) {
    for (int e = 0; e < 4; ++e) p.out[(i + e / 2 * 8) * dim + n * 8 + j + e % 2] = out[n * 4 + e];
  }
}

extern "C" __global__ void __launch_bounds__(256, 2) products_bf16_64_128(const __grid_constant__ Params p) { products<ptx::bf16, 64, 128>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) products_bf16_128_64(const __grid_constant__ Params p) { products<ptx::bf16, 128, 64>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) products_bf16_256_128(const __grid_constant__ Params p) { products<ptx::bf16, 256, 128>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) products_fp16_128_128(const __grid_constant__ Params p) { products<ptx::fp16, 128, 128>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) products_fp16_64_64(const __grid_constant__ Params p) { products<ptx::fp16, 64, 64>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) products_fp16_256_64(const __grid_constant__ Params p) { products<ptx::fp16, 256, 64>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) products_bf16_64_256(const __grid_constant__ Params p) { products<ptx::bf16, 64, 256>(p); }

// One product of 16 columns, a from registers and b in un-swizzled blocks of eight rows of 16
// bytes, wherever in shared memory.
struct PlainParams {
  const uint32_t* a;       // [128][4]
  const unsigned char* b;  // what shared memory holds
  float* d;                // [128][8]
  int bytes;               // of b
  int first, leading, stride;
  int from_leading, from_stride;  // of a descriptor at byte 0 that this one is made from; 0: of none
  int accumulate;
  int reserved;
};

extern "C" __global__ void __launch_bounds__(128) plain_product(const __grid_constant__ PlainParams p) {
  unsigned char* shared = ptx::dynamic_shared();
  const int thread = ptx::thread_index();
  for (int i = thread * 16; i < p.bytes; i += 128 * 16) ptx::store_16(shared + i, ptx::load_16(p.b + i));
  ptx::fence_async_shared();
  ptx::sync_threads();
  const uint32_t address = ptx::shared_address(shared);
  uint64_t b = ptx::plain_matrix_descriptor(address + p.first, p.leading, p.stride);
  if (p.from_leading != 0) {
    b = ptx::plain_descriptor_behind(ptx::plain_matrix_descriptor(address, p.from_leading, p.from_stride), p.first, p.leading - p.from_leading, p.stride - p.from_stride);
  }
  uint32_t a[4];
  float d[8];
  for (int i = 0; i < 4; ++i) a[i] = p.a[thread * 4 + i];
  for (int i = 0; i < 8; ++i) d[i] = p.d[thread * 8 + i];
  ptx::wgmma_fence();
  ptx::Wgmma<ptx::fp16, 16>::registers_rows(d, a, b, p.accumulate != 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(d);
  for (int i = 0; i < 8; ++i) p.d[thread * 8 + i] = d[i];
}
