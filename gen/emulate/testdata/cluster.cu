// A kernel in clusters of two blocks, and many mistakes: `which` chooses, 0 being none.
//
// Each block multiplies queries of its own with the cluster's tiles of keys, of which each block
// copies one half to both, in two stages. Each block adds up one half of the columns of both
// blocks' products: the other half it sends to the other block.
struct Params {
  const unsigned char* q;      // [clusters][2][64][64]
  const unsigned char* k_map;  // [tiles][64][64], in boxes of 32 rows
  float* out;                  // [clusters][64][64]
  int which;
  int tiles;
};

constexpr int row = 128, tile = 64 * row;  // bytes
constexpr int consumer_threads = 128, consumer_warps = 4;
// One warp more, so that the block is not of whole warpgroups.
constexpr int threads = consumer_threads + 32;

struct Shared {
  unsigned char q[tile], k[2][tile];
  unsigned char whole[2 * consumer_threads * 16], pairs[64 * 64];  // of the other block's products
  unsigned long long full[2], empty[2], q_full, products_full, spare;
};

__device__ __forceinline__ uint32_t there(const void* p) { return ptx::shared_of(ptx::shared_address(p), ptx::cluster_rank() ^ 1); }

__device__ __forceinline__ void arrive_at_both(void* barrier) {
  for (int rank = 0; rank < 2; ++rank) ptx::barrier_arrive_at(ptx::shared_of(ptx::shared_address(barrier), rank));
}

__device__ __forceinline__ void produce(const Params& p, Shared& shared, int which) {
  const int rank = ptx::cluster_rank();
  ptx::tensor_map_acquire(p.k_map);
  for (int t = 0; t < p.tiles; ++t) {
    const int stage = t % 2, parity = t / 2 % 2 ^ 1;
    const uint32_t full = ptx::shared_address(&shared.full[stage]), empty = ptx::shared_address(&shared.empty[stage]);
    const uint32_t k = ptx::shared_address(shared.k[stage]) + rank * tile / 2;
    ptx::barrier_wait(empty, parity);
    ptx::barrier_arrive_expecting(full, which == 3 ? tile / 2 : which == 4 ? tile + 16 : tile);
    if (which == 20 && t == 1) ptx::barrier_arrive_at(there(&shared.full[stage]));
    if (which == 16) ptx::tensor_copy(ptx::shared_of(k, rank), p.k_map, full, ptx::evict_first(), 0, rank * 32, 0, 0, ptx::block_x() / 2 + t);
    else ptx::tensor_copy_to_both(k, p.k_map, full, ptx::evict_first(), 0, rank * 32, 0, 0, ptx::block_x() / 2 + t);
  }
}

__device__ __forceinline__ void take_queries(const Params& p, Shared& shared, int which, int thread) {
  const unsigned char* q = p.q + ptx::block_x() * tile;
  for (int i = thread; i < 64 * 8; i += consumer_threads) {
    const int r = i / 8, chunk = i % 8;
    ptx::store_16(shared.q + r * row + (chunk ^ (r & 7)) * 16, ptx::load_16(q + i * 16));
  }
  if (which != 9) ptx::fence_async_shared();
  ptx::sync_warp();
  ptx::barrier_arrive_if(thread % 32 == 0, ptx::shared_address(&shared.q_full));
  ptx::barrier_wait(ptx::shared_address(&shared.q_full), 0);
}

// What of a thread's 32 values are those of columns half * 32 and on: the first two groups of
// four as they are, the others by rows and columns.
__device__ __forceinline__ void send_products(const float (&d)[32], Shared& shared, int which, int half, int thread) {
  const int lane = thread % 32, first_row = thread / 32 * 16 + lane / 4;
  const uint32_t full = there(&shared.products_full);
  if (which == 8) ptx::barrier_arrive_at(full);
  else if (which != 24) ptx::barrier_arrive_expecting_at(full, which == 7 ? 56 : 64);
  for (int n = 0; n < 4; ++n) {
    for (int e = 0; e < 2; ++e) {
      const float* x = d + (half * 4 + n) * 4 + e * 2;
      const int place = (first_row + e * 8) * 64 + n % 2 * 32 + (which == 21 ? lane % 4 / 2 : lane % 4) * 8;
      const uint32_t to = n < 2 ? there(which == 22 ? shared.k[0] : shared.whole) + (n * consumer_threads + thread) * 16 + e * 8 : there(shared.pairs) + place;
      ptx::store_8_async(which == 17 ? to + (1 << 20) : which == 19 ? to + 4 : which == 27 ? ptx::shared_address(shared.pairs) : to,
                         make_int2(__float_as_int(x[0]), __float_as_int(x[1])), which == 10 ? ptx::shared_of(ptx::shared_address(&shared.products_full), ptx::cluster_rank()) : full);
    }
  }
}

__device__ __forceinline__ void add_products(float (&d)[32], const Shared& shared, int half, int thread) {
  const int lane = thread % 32, first_row = thread / 32 * 16 + lane / 4;
  for (int n = 0; n < 2; ++n) {
    const float4 x = ptx::as_floats(ptx::load_16(shared.whole + (n * consumer_threads + thread) * 16));
    float* to = d + (half * 4 + n) * 4;
    to[0] += x.x, to[1] += x.y, to[2] += x.z, to[3] += x.w;
  }
  for (int n = 0; n < 2; ++n) {
    for (int e = 0; e < 2; ++e) {
      const float4 x = ptx::as_floats(ptx::load_16(shared.pairs + (first_row + e * 8) * 64 + n * 32 + lane % 4 / 2 * 16));
      float* to = d + (half * 4 + 2 + n) * 4 + e * 2;
      to[0] += lane % 2 ? x.z : x.x, to[1] += lane % 2 ? x.w : x.y;
    }
  }
}

__device__ __forceinline__ void consume(const Params& p, Shared& shared, int which, int thread) {
  const int lane = thread % 32, warp = thread / 32, rank = ptx::cluster_rank();
  take_queries(p, shared, which, thread);
  if (which == 14) ptx::barrier_arrive_at(ptx::shared_address(&shared.spare));
  if (which == 15) ptx::barrier_arrive(there(&shared.spare));
  float d[32];
  const uint32_t q = ptx::shared_address(shared.q);
  for (int t = 0; t < p.tiles; ++t) {
    const int stage = t % 2;
    const uint32_t k = ptx::shared_address(shared.k[stage]);
    ptx::barrier_wait(ptx::shared_address(&shared.full[stage]), t / 2 % 2);
    ptx::wgmma_fence();
    for (int step = 0; step < 4; ++step) {
      ptx::Wgmma<ptx::bf16, 64>::shared(d, ptx::matrix_descriptor((which == 26 ? there(shared.q) : q) + step * 32, 0, 1024), ptx::matrix_descriptor(k + step * 32, 0, 1024), t > 0 || step > 0);
    }
    ptx::wgmma_commit();
    if (which == 6 && lane == 0) arrive_at_both(&shared.empty[stage]);
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(d);
    if (which == 5) {
      if (lane == 0) ptx::barrier_arrive(ptx::shared_address(&shared.empty[stage]));
    } else if (which != 6 && (which != 12 || t < p.tiles - 1) && lane == 0) {
      arrive_at_both(&shared.empty[stage]);
    }
  }
  send_products(d, shared, which, rank ^ 1, thread);
  if (which != 23 && which != 24) ptx::barrier_wait(ptx::shared_address(&shared.products_full), 0);
  if (which != 24) add_products(d, shared, rank, thread);
  if (which == 12 && lane == 0) arrive_at_both(&shared.empty[(p.tiles - 1) % 2]);
  for (int n = rank * 4; n < rank * 4 + 4; ++n) {
    for (int e = 0; e < 4; ++e) p.out[ptx::block_x() / 2 * 4096 + (warp * 16 + lane / 4 + e / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + e % 2] = d[n * 4 + e];
  }
}

__device__ __forceinline__ void init_barriers(Shared& shared, int which) {
  for (int s = 0; s < 2; ++s) {
    ptx::barrier_init(ptx::shared_address(&shared.full[s]), 1);
    ptx::barrier_init(ptx::shared_address(&shared.empty[s]), which == 5 ? consumer_warps : 2 * consumer_warps);
  }
  ptx::barrier_init(ptx::shared_address(&shared.q_full), consumer_warps);
  ptx::barrier_init(ptx::shared_address(&shared.products_full), consumer_threads);
  ptx::barrier_init(ptx::shared_address(&shared.spare), 1);
  ptx::barrier_init_fence();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(threads, 1)
cluster(const __grid_constant__ Params p) {
  Shared& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  const int thread = ptx::thread_index(), which = p.which;
  if (which == 2) ptx::cluster_sync();
  if (thread == 0) init_barriers(shared, which);
  if (which == 1 || which == 2) ptx::sync_threads();
  else ptx::cluster_sync();
  if (which == 18) ptx::shared_of(ptx::shared_address(&shared), 2);
  if (which == 25 && ptx::cluster_rank() == 1) return;
  if (thread >= consumer_threads) {
    if (thread == consumer_threads) produce(p, shared, which);
    if (which == 13 && thread == threads - 1) ptx::barrier_wait(ptx::shared_address(&shared.spare), 0);
  } else {
    consume(p, shared, which, thread);
  }
  if (which != 12) ptx::cluster_sync();
}

// A block that is a cluster by itself.
struct AloneParams {
  float* out;  // [64]
  int which;
  int reserved;
};
namespace kgen {
struct Config { static constexpr int cluster = 1, threads = 64, min_blocks = 1; };
}

extern "C" __global__ void __cluster_dims__(kgen::Config::cluster, 1, 1) __launch_bounds__(kgen::Config::threads, kgen::Config::min_blocks)
alone(const __grid_constant__ AloneParams p) {
  unsigned char* shared = ptx::dynamic_shared();
  const int thread = ptx::thread_index();
  const uint32_t barrier = ptx::shared_address(shared + 1024), own = ptx::shared_of(ptx::shared_address(shared), 0);
  if (thread == 0) {
    ptx::barrier_init(barrier, kgen::Config::threads);
    ptx::barrier_init_fence();
  }
  ptx::cluster_sync();
  if (p.which == 1) ptx::tensor_copy_to_both(ptx::shared_address(shared), p.out, barrier, ptx::evict_first(), 0, 0, 0, 0, 0);
  ptx::barrier_arrive_expecting_at(ptx::shared_of(barrier, 0), 8);
  ptx::store_8_async(own + thread * 16, make_int2(__float_as_int(thread + ptx::cluster_rank()), 0), ptx::shared_of(barrier, 0));
  ptx::barrier_wait(barrier, 0);
  p.out[thread] = ptx::as_floats(ptx::load_16(shared + (thread ^ 37) * 16)).x;
}

// As many threads and barriers as there may be. Each block's threads wait for each other a
// number of times of its own.
struct PlacesParams {
  int* out;  // [blocks][512][3]
};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(512, 1)
places(const __grid_constant__ PlacesParams p) {
  constexpr int barriers = 56;
  unsigned char* shared = ptx::dynamic_shared();
  const int thread = ptx::thread_index();
  if (thread < barriers) ptx::barrier_init(ptx::shared_address(shared + thread * 8), 1);
  for (int i = 0; i < 3 * ptx::cluster_rank(); ++i) ptx::sync_threads();
  ptx::named_barrier_sync(1 + ptx::warp_index() / 8, 256);
  ptx::cluster_sync();
  if (thread < barriers) {
    ptx::barrier_arrive_at(there(shared + thread * 8));
    ptx::barrier_wait(ptx::shared_address(shared + thread * 8), 0);
  }
  int* out = p.out + (ptx::block_x() * 512 + thread) * 3;
  out[0] = ptx::cluster_rank(), out[1] = ptx::warp_index(), out[2] = ptx::lane_index();
}
