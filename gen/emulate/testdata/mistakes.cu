// One kernel, many mistakes: `which` chooses, 0 being none. Two warps copy a
// tile to shared memory and each reads what the other one copied.
struct Params {
  const unsigned char* in;  // 1024 bytes
  unsigned char* out;       // 1024 bytes
  int which;
  int zero;
};

// Recurses without end.
static unsigned char deep(volatile unsigned char* out, int depth) {
  volatile unsigned char frame[10000];
  frame[depth % 10000] = out[depth % 1024];
  return static_cast<unsigned char>(deep(out, depth + 1) + frame[(depth + 1) % 10000]);
}

extern "C" __global__ void mistakes(const __grid_constant__ Params p) {
  unsigned char* shared = ptx::dynamic_shared();  // 1024 bytes
  const int thread = ptx::thread_index(), other = thread ^ 32;
  const uint32_t mine = ptx::shared_address(shared + thread * 16);
  const int which = p.which;
  if (which == 1) { if (thread == 40) p.out[1024] = 1; }
  if (which == 2) { if (thread == 40) p.out[0] = p.in[-1]; }
  if (which == 3) { if (thread == 40) *reinterpret_cast<const volatile int*>(p.in - p.zero - 5000); }
  if (which == 4) shared[1024 + thread] = 1;
  if (which == 5) ptx::cp_async_16(mine + 512, p.in + thread * 16, true);
  if (which == 6) ptx::cp_async_16(mine + 8, p.in + thread * 16, true);
  if (which == 7) ptx::cp_async_16(mine, p.in + thread * 16 + 8, true);
  if (which == 8 && thread == 40) return;
  ptx::cp_async_16(mine, which == 9 ? p.in + 1024 : p.in + thread * 16, which != 10 || thread % 2 == 0);
  if (which != 11) ptx::cp_async_commit();
  if (which != 12 && which != 13) ptx::cp_async_wait<0>();
  if (which == 13) ptx::cp_async_wait<1>();
  if (which == 14) {
    if (thread < 32) ptx::sync_threads();
    else ptx::sync_threads();
  }
  if (which == 15 && thread % 2) ptx::sync_warp();
  if (which == 16) { if (thread % 2) ptx::sync_warp(); else ptx::sync_threads(); }
  if (which == 17) ptx::shuffle_xor(1.0f, 32);
  if (which == 18) { if (thread == 3) p.out[0] = static_cast<unsigned char>(thread / p.zero); }
  if (which == 19) { while (static_cast<const volatile Params&>(p).zero == 0) {} }
  if (which != 20) ptx::sync_threads();
  uint32_t r[4];
  ptx::ldmatrix_x4(r, ptx::shared_address(shared + other * 16));
  if (which == 21) ptx::cp_async_16(mine, p.in + thread * 16, true);
  const uint4 x = ptx::load_16(shared + other * 16);
  if (which == 22) ptx::store_16(shared + (thread ^ 1) * 16, x);
  if (which == 23) ptx::store_16(p.out + other * 16 + 4, x);
  if (which == 24) p.out[0] = deep(p.out, 0);
  if (which == 25) { if (thread == 40) *reinterpret_cast<const volatile int*>(p.zero + 8ll); }
  if (which == 26) { if (thread == 40) *reinterpret_cast<uint32_t*>(p.out + 2) = 1; }
  if (which == 27) p.out[0] = static_cast<unsigned char>(r[4 + p.zero]);
  float unset[4];
  if (which == 28) ptx::store_16(p.out + thread * 16, *reinterpret_cast<const uint4*>(unset));
  if (which == 28) return;
  ptx::store_16(p.out + other * 16, x);
}
