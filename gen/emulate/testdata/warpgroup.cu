// One warpgroup's two products over keys and values that a producer warp copies
// from pages: scores = q * k', out = scores * v.
struct Params {
  const void* q_map;  // [1][1][64][dim]
  const void* k_map;  // [pages][heads][16][dim]
  const void* v_map;
  const int* pages;  // [keys / 16]
  float* scores;     // [64][keys]
  float* out;        // [64][dim]
  int head;
  int reserved;
};

template <class T, int keys, int dim>
__device__ __forceinline__ void products(const Params& p) {
  constexpr int page = 16, halves = dim / 64, row = 128;  // bytes of a row
  unsigned char* shared = ptx::dynamic_shared();
  const uint32_t q = ptx::shared_address(shared), k = q + halves * 64 * row, v = k + halves * keys * row;
  const uint32_t full = v + halves * keys * row, v_full = full + 8;
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
      ptx::tensor_map_prefetch(p.k_map);
      ptx::barrier_arrive_expecting(full, halves * (64 + keys) * row);
      for (int half = 0; half < halves; ++half) {
        ptx::tensor_copy(q + half * 64 * row, p.q_map, full, ptx::evict_unchanged(), half * 64, 0, 0, 0);
        for (int i = 0; i < keys / page; ++i) {
          ptx::tensor_copy(k + (half * keys + i * page) * row, p.k_map, full, ptx::evict_unchanged(), half * 64, 0, p.head, p.pages[i]);
        }
      }
      ptx::barrier_arrive_expecting(v_full, halves * keys * row);
      for (int half = 0; half < halves; ++half) {
        for (int i = 0; i < keys / page; ++i) {
          ptx::tensor_copy(v + (half * keys + i * page) * row, p.v_map, v_full, ptx::evict_unchanged(), half * 64, 0, p.head, p.pages[i]);
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
    const int half = step / 4, inside = step % 4 * 32;
    ptx::Wgmma<T, keys>::shared(scores, ptx::matrix_descriptor(q + half * 64 * row + inside, 0, 1024),
                                ptx::matrix_descriptor(k + half * keys * row + inside, 0, 1024), step > 0);
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
    ptx::Wgmma<T, dim>::registers(out, a, ptx::matrix_descriptor(v + step * 16 * row, keys * row, 1024), step > 0);
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
