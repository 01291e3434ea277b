// Two blocks of a cluster that give each other numbers round after round, and many mistakes:
// `which` chooses, 0 being none.
//
// Threads write their block's numbers, one more warp copies them to the other block, whose
// threads read them, and let go of both places by an arrival at the first block's barrier.
struct Params {
  float* out;  // [blocks][rounds][64]
  int which;
  int rounds;
};

constexpr int writers = 64, threads = writers + 32, bytes = writers * 16;

struct Shared {
  unsigned char from[bytes], to[bytes], own[bytes];
  unsigned long long written, full, free;
};

__device__ __forceinline__ uint32_t there(const void* p) { return ptx::shared_of(ptx::shared_address(p), ptx::cluster_rank() ^ 1); }

__device__ __forceinline__ void give(const Params& p, Shared& shared) {
  const int which = p.which;
  const uint32_t full = ptx::shared_address(&shared.full), from = ptx::shared_address(shared.from), to = ptx::shared_address(shared.to);
  for (int r = 0; r < p.rounds; ++r) {
    if (which != 5) ptx::barrier_wait(ptx::shared_address(&shared.written), r % 2);
    if (which == 8) ptx::barrier_arrive(full);
    else ptx::barrier_arrive_expecting(full, which == 9 ? bytes / 2 : which == 10 ? bytes + 16 : which == 1 ? 2 * bytes : bytes);
    if (which == 1) ptx::shared_copy_to(ptx::shared_of(ptx::shared_address(shared.own), ptx::cluster_rank()), from, bytes, ptx::shared_of(full, ptx::cluster_rank()));
    ptx::shared_copy_to(which == 2 ? to : which == 13 ? there(shared.to) + 8 : which == 16 ? there(shared.to) + 8192 : there(shared.to),
                        which == 3 ? there(shared.from) : which == 14 ? from + 8 : which == 17 ? from + 8192 : from, which == 15 ? bytes - 8 : which == 22 ? 0 : bytes,
                        which == 4 ? full : which == 18 ? ptx::shared_of(full, ptx::cluster_rank()) : there(&shared.full));
  }
}

__device__ __forceinline__ void exchange_numbers(const Params& p, Shared& shared, int thread) {
  const int which = p.which;
  const uint32_t written = ptx::shared_address(&shared.written), full = ptx::shared_address(&shared.full), free = ptx::shared_address(&shared.free);
  for (int r = 0; r < p.rounds; ++r) {
    const bool last = r == p.rounds - 1;
    if (which != 11) ptx::barrier_wait(free, r % 2 ^ 1);
    ptx::store_16(shared.from + thread * 16, make_uint4(__float_as_uint(ptx::block_x() * 10000 + r * 100 + thread), 0, 0, 0));
    if (which != 6) ptx::fence_async_shared();
    ptx::barrier_arrive(written);
    if (which == 12) ptx::store_16(shared.from + thread * 16, make_uint4(0, 0, 0, 0));
    if (which != 7 && (which != 21 || !last)) ptx::barrier_wait(full, r % 2);
    if (which != 21 || !last) {
      float x = ptx::as_floats(ptx::load_16(shared.to + (thread ^ 37) * 16)).x;
      if (which == 1) x += ptx::as_floats(ptx::load_16(shared.own + (thread ^ 37) * 16)).x;
      p.out[(ptx::block_x() * p.rounds + r) * writers + thread] = x;
    }
    if (which != 20 || !last) ptx::barrier_arrive_at(there(&shared.free));
  }
  if (which != 20) ptx::barrier_wait(free, p.rounds % 2 ^ 1);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(threads, 1)
exchange(const __grid_constant__ Params p) {
  Shared& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  const int thread = ptx::thread_index();
  if (thread == writers) {
    ptx::barrier_init(ptx::shared_address(&shared.written), writers);
    ptx::barrier_init(ptx::shared_address(&shared.full), 1);
    ptx::barrier_init(ptx::shared_address(&shared.free), writers);
    if (p.which != 19) ptx::barrier_init_fence();
  }
  if (p.which != 25) ptx::sync_threads();
  if (p.which != 23) ptx::cluster_start();
  if (p.which == 24 && ptx::cluster_rank() == 1) return;
  if (thread < writers) exchange_numbers(p, shared, thread);
  else if (thread == writers) give(p, shared);
}
