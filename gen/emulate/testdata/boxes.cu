// A box of a tensor, as it lies in shared memory, and named barriers.
struct Params {
  const void* map;
  unsigned char* out;  // [bytes]
  int x, y, z, w, v;
  int bytes;   // of the box
  int offset;  // of the box in shared memory
  int reserved;
};

extern "C" __global__ void box(const __grid_constant__ Params p) {
  unsigned char* shared = ptx::dynamic_shared();
  const uint32_t barrier = ptx::shared_address(shared + p.offset + p.bytes);
  if (ptx::thread_index() == 0) {
    ptx::barrier_init(barrier, 1);
    ptx::barrier_init_fence();
    ptx::tensor_map_acquire(p.map);
    ptx::tensor_copy(ptx::shared_address(shared + p.offset), p.map, barrier, ptx::evict_unchanged(), p.x, p.y, p.z, p.w, p.v);
    ptx::barrier_arrive_expecting(barrier, p.bytes);  // the bytes may come first
  }
  ptx::sync_threads();
  ptx::barrier_wait(barrier, 0);
  ptx::barrier_wait(barrier, 0);
  ptx::barrier_wait(barrier, 0);  // a phase that is over stays so, until the next one is
  for (int i = ptx::thread_index() * 16; i < p.bytes; i += 32 * 16) ptx::store_16(p.out + i, ptx::load_16(shared + p.offset + i));
}

struct RingParams {
  int* out;  // [rounds][64]
  int rounds;
  int reserved;
};

// Two warps tell each other through bar.arrive and bar.sync: one writes, the other reads.
extern "C" __global__ void ring(const __grid_constant__ RingParams p) {
  uint4* shared = reinterpret_cast<uint4*>(ptx::dynamic_shared());
  const unsigned thread = static_cast<unsigned>(ptx::thread_index()), lane = thread % 32;
  if (thread < 32) {
    for (int i = 0; i < p.rounds; ++i) {
      if (i > 0) ptx::named_barrier_sync(2, 64);  // it is empty
      ptx::store_16(shared + lane, make_uint4(thread + static_cast<unsigned>(i), 0, 0, 0));
      ptx::named_barrier_arrive(1, 64);
    }
  } else {
    for (int i = 0; i < p.rounds; ++i) {
      ptx::named_barrier_sync(1, 64);  // it is full
      p.out[i * 32 + static_cast<int>(lane)] = static_cast<int>(ptx::load_16(shared + (lane ^ 1)).x);
      if (i < p.rounds - 1) ptx::named_barrier_arrive(2, 64);
    }
  }
}
