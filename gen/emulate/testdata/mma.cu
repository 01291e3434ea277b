// One warp's products, matrix loads and stores, operands given and results taken
// lane by lane.
struct Params {
  const uint32_t* a;  // [32][4]
  const uint32_t* b;  // [32][2]
  float* d;           // [32][4]
};

template <class T>
__device__ __forceinline__ void product(const Params& p) {
  const int lane = ptx::thread_index();
  uint32_t a[4];
  float d[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = p.a[lane * 4 + i];
    d[i] = p.d[lane * 4 + i];
  }
  ptx::mma_m16n8k16<T>(d, a, p.b[lane * 2], p.b[lane * 2 + 1]);
  for (int i = 0; i < 4; ++i) p.d[lane * 4 + i] = d[i];
}

extern "C" __global__ void mma_bf16(const __grid_constant__ Params p) { product<ptx::bf16>(p); }
extern "C" __global__ void __launch_bounds__(32) mma_fp16(const __grid_constant__ Params p) { product<ptx::fp16>(p); }

struct LoadParams {
  const unsigned char* in;  // 512 bytes: row i at 16 * i
  uint32_t* out;            // [32][4]
  int transposed;
  int reserved;
};
extern "C" __global__ __launch_bounds__((32), 1) void ldmatrix(const __grid_constant__ LoadParams p) {
  unsigned char* shared = ptx::dynamic_shared();
  const int lane = ptx::thread_index();
  // Rows lie in reverse order, so that addresses matter.
  ptx::store_16(shared + (31 - lane) * 16, ptx::load_16(p.in + lane * 16));
  ptx::sync_warp();
  uint32_t r[4];
  const uint32_t address = ptx::shared_address(shared + (31 - lane) * 16);
  if (p.transposed) {
    ptx::ldmatrix_x4_trans(r, address);
  } else {
    ptx::ldmatrix_x4(r, address);
  }
  for (int i = 0; i < 4; ++i) p.out[lane * 4 + i] = r[i];
}

struct StoreParams {
  const uint32_t* in;  // [32][4]
  const int* place;    // [32]: of each lane's row
  unsigned char* out;  // 512 bytes: row i at 16 * i
  uint32_t* again;     // [32][4], loaded from the same rows
};
extern "C" __global__ void __launch_bounds__(32) stmatrix(const __grid_constant__ StoreParams p) {
  unsigned char* shared = ptx::dynamic_shared();
  const int lane = ptx::lane_index();
  uint32_t r[4];
  for (int i = 0; i < 4; ++i) r[i] = p.in[lane * 4 + i];
  const uint32_t address = ptx::shared_address(shared + p.place[lane] * 16);
  ptx::stmatrix_x4(address, r);
  ptx::ldmatrix_x4(r, address);
  for (int i = 0; i < 4; ++i) p.again[lane * 4 + i] = r[i];
  ptx::store_16(p.out + lane * 16, ptx::load_16(shared + lane * 16));
}
