// One kernel of family sm90, many mistakes: `which` chooses, 0 being none. A
// producer warp copies tiles of keys in two stages; a warpgroup, which puts a
// tile of queries in shared memory, adds up its products with all of them.
struct Params {
  const unsigned char* q;  // [64][64]
  const unsigned char* k_map;  // [tiles][64][64]
  float* out;              // [64][64]
  int which;
  int tiles;
};

constexpr int row = 128, tile = 64 * row;  // bytes
constexpr int consumer_threads = 128;

struct Shared {
  unsigned char q[tile], k[2][tile], spare_rows[4 * row];
  unsigned long long full[2], empty[2], spare;
};

// Where the keys of a stage are.
__device__ __forceinline__ uint32_t keys_at(Shared& shared, int stage, int which) {
  return ptx::shared_address(shared.k[stage]) + (which == 44 ? sizeof shared.spare_rows : 0);
}

// How a warp may go wrong with the registers it gives.
__device__ __forceinline__ void give_registers(int which, int warp) {
  if (which == 45 && warp == 6) ptx::registers_give<32>();
  else if (which != 24 || warp != 6) ptx::registers_give<24>();
  if (which == 24 && warp == 7) ptx::registers_give<24>();
}

__device__ __forceinline__ void produce(const Params& p, Shared& shared, int which) {
  for (int t = 0; t < p.tiles; ++t) {
    const int stage = t % 2, round = t / 2;
    const uint32_t full = ptx::shared_address(&shared.full[stage]), k = keys_at(shared, stage, which);
    if (which != 4) ptx::barrier_wait(ptx::shared_address(&shared.empty[stage]), round % 2 ^ 1);
    ptx::barrier_arrive_expecting(full, which == 7 ? tile - 16 : which == 8 ? tile + 16 : tile);
    if (which == 10 && t == 1) ptx::barrier_arrive(full);
    ptx::tensor_copy(which == 17 ? k + 64 : k, which == 15 ? p.q : which == 16 ? p.k_map + 16 : p.k_map, full, ptx::evict_unchanged(), 0, 0, 0, 0, t);
  }
  if (which == 30) {
    ptx::barrier_arrive_expecting(ptx::shared_address(&shared.spare), tile);
    ptx::barrier_wait(ptx::shared_address(&shared.empty[0]), (p.tiles + 1) / 2 % 2 ^ 1);
    ptx::tensor_copy(ptx::shared_address(shared.k[0]), p.k_map, ptx::shared_address(&shared.spare), ptx::evict_unchanged(), 0, 0, 0, 0, 0);
  }
}

// The tile of queries by stmatrix: two chunks at a time of sixteen rows, which another warp
// multiplies.
__device__ __forceinline__ void store_matrices(const Params& p, Shared& shared, int which, int warp, int lane) {
  const int first_row = 16 * (warp ^ 1), r = first_row + (which == 37 ? lane % 8 : lane % 16);
  for (int first = 0; first < 8; first += 2) {
    uint32_t x[4];
    for (int m = 0; m < 4; ++m) {
      const unsigned char* at = p.q + (first_row + m % 2 * 8 + lane / 4) * row + (first + m / 2) * 16 + lane % 4 * 4;
      x[m] = *reinterpret_cast<const uint32_t*>(at);
    }
    const uint32_t to = ptx::shared_address(shared.q) + r * row + ((first + lane / 16) ^ (r & 7)) * 16;
    if (which == 40 && lane == 7) continue;
    ptx::stmatrix_x4(which == 38 ? to + 8 : to, x);
  }
}

__device__ __forceinline__ void consume(const Params& p, Shared& shared, int which, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  if (which >= 34 && which <= 40) {
    store_matrices(p, shared, which, warp, lane);
  } else {
    for (int i = thread; i < 64 * 8; i += consumer_threads) {
      const int r = i / 8, chunk = i % 8;
      ptx::store_16(shared.q + r * row + (chunk ^ (r & 7)) * 16, ptx::load_16(p.q + i * 16));
    }
  }
  if (which != 1 && which != 35) ptx::fence_async_shared();
  if (which == 22) ptx::named_barrier_sync(1, warp == 2 ? 96 : 128);
  else if (which != 2 && which != 36) ptx::named_barrier_sync(1, consumer_threads);
  float d[32], early = 0;
  const uint32_t q = ptx::shared_address(shared.q);
  for (int t = 0; t < p.tiles; ++t) {
    const int stage = t % 2, round = t / 2;
    const uint32_t k = keys_at(shared, stage, which), empty = ptx::shared_address(&shared.empty[stage]);
    const int waited = which == 28 ? stage ^ 1 : stage, parity = which == 21 ? 2 : which == 29 ? 0 : round % 2;
    if (which != 3) ptx::barrier_wait(ptx::shared_address(which == 31 ? &shared.spare + 1 : &shared.full[waited]), parity);
    if (which != 13) ptx::wgmma_fence();
    for (int step = 0; step < 4; ++step) {
      if (which == 18 && warp == 3 && t == 1) break;
      uint64_t a = ptx::matrix_descriptor(q + step * 32, 0, 1024), b = ptx::matrix_descriptor(k + step * 32, 0, 1024);
      if (which == 19 && lane == 5) b = ptx::matrix_descriptor(k, 0, 1024);
      if (which == 20 && warp == 1) b = ptx::matrix_descriptor(k, 0, 1024);
      if (which == 25) a |= 3ul << 62;
      if (which == 41) a &= ~(3ul << 62);
      if (which == 42) b = ptx::plain_descriptor_behind(ptx::plain_matrix_descriptor(k, 0, 1024), 0, -16, 0);
      ptx::Wgmma<ptx::bf16, 64>::shared(d, a, b, t > 0 || step > 0);
    }
    if (which == 5 && lane == 0) ptx::barrier_arrive(empty);
    if (which != 27) ptx::wgmma_commit();
    if (which == 39 && t == 1) store_matrices(p, shared, which, warp, lane);
    if (which == 14 && t == 1) d[3] *= 2;
    if (which == 33 && t == 1) early = d[3];
    if (which == 6 && t == p.tiles - 1) break;
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(d);
    if (which == 43) {
      for (int i = 0; warp == 2 && lane == 0 && i < 4; ++i) ptx::barrier_arrive(empty);
    } else if (which != 5 && lane == 0) {
      ptx::barrier_arrive(empty);
    }
    if (which == 26 && t == 1 && thread == 0) shared.full[0] = 0;
  }
  if (which == 46) {
    ptx::named_barrier_sync(1, consumer_threads);
    const bool chosen = ptx::elect();
    if (lane == 0) ptx::store_16(shared.q + warp * 16, make_uint4(0, 0, 0, 0));
    if (chosen) ptx::load_16(shared.q + warp * 16);
  }
  for (int n = 0; n < 8; ++n) {
    for (int e = 0; e < 4; ++e) p.out[(warp * 16 + lane / 4 + e / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + e % 2] = d[n * 4 + e] + early;
  }
}

extern "C" __global__ void __launch_bounds__(256, 2) mistakes_sm90(const __grid_constant__ Params p) {
  Shared& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  const int thread = ptx::thread_index(), which = p.which;
  if (thread == 0) {
    for (int s = 0; s < 2; ++s) {
      ptx::barrier_init(ptx::shared_address(&shared.full[s]), which == 9 ? 2 : 1);
      ptx::barrier_init(ptx::shared_address(&shared.empty[s]), 4);
    }
    ptx::barrier_init(ptx::shared_address(which == 32 ? &shared.full[1] : &shared.spare), 1);
    if (which != 11) ptx::barrier_init_fence();
    if (which < 47) ptx::tensor_map_acquire(p.k_map);
  }
  if (which != 12) ptx::sync_threads();
  if (which == 48 && thread == 0) ptx::tensor_map_acquire(p.k_map);
  if (thread >= consumer_threads) {
    give_registers(which, thread / 32);
    if (thread == consumer_threads) produce(p, shared, which);
  } else {
    if (which == 23) ptx::registers_take<240>();
    else if (which == 24 || which == 45) ptx::registers_take<200>();
    else ptx::registers_take<232>();
    consume(p, shared, which, thread);
  }
}
