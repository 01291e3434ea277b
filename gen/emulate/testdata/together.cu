// Two warpgroups that add up products in four rounds. Each instruction of a warpgroup is called
// from two places, of which a round takes one: the warps of a warpgroup the same, but not those
// of both. `which` chooses a mistake, 0 being none.
struct Params {
  float* out;  // [256][8]
  int which;
  int reserved;
};

constexpr uint32_t ones = 0x3c003c00;  // a pair of fp16

extern "C" __global__ void __launch_bounds__(256) together(const __grid_constant__ Params p) {
  unsigned char* shared = ptx::dynamic_shared();
  const int thread = ptx::thread_index(), warp = ptx::warp_index(), which = p.which;
  if (thread < 64) ptx::store_16(shared + thread * 16, make_uint4(ones, ones, ones, ones));
  ptx::fence_async_shared();
  ptx::sync_threads();
  const uint64_t b = ptx::plain_matrix_descriptor(ptx::shared_address(shared), 256, 128);
  const uint32_t a[4] = {ones, ones, ones, ones};
  float d[8];
  for (int i = 0; i < 8; ++i) d[i] = 0.f;
  auto fence = [&]() { ptx::wgmma_fence(); };
  auto multiply = [&]() { ptx::Wgmma<ptx::fp16, 16>::registers_rows(d, a, b, true); };
  auto commit = [&]() { ptx::wgmma_commit(); };
  auto wait = [&]() { ptx::wgmma_wait<0>(); };
  for (int round = 0; round < 4; ++round) {
    // Is an instruction called from its first place?
    auto first = [&](int mistake) {
      const int chooses = which == mistake ? warp : which == 5 && mistake == 2 ? thread : warp / 4;
      return (round + chooses) % 2 == 0;
    };
    if (first(1)) fence();
    else fence();
    if (first(2)) multiply();
    else multiply();
    if (which == 6 && warp == 5) ptx::wgmma_fence();
    if (which == 7 && warp == 5) ptx::wgmma_fence();
    else ptx::wgmma_fence();
    if (which != 8 || warp != 5) {
      if (first(3)) commit();
      else commit();
    }
    if (first(4)) wait();
    else wait();
  }
  if (which == 9 && warp == 5) ptx::wgmma_fence();
  while (which == 10 && warp == 5) ptx::wgmma_fence();
  ptx::wgmma_touch(d);
  for (int i = 0; i < 8; ++i) p.out[thread * 8 + i] = d[i];
}
