// Copies numbers, a thread each: `which` says how the kernel treats the one ahead of it.
struct Params {
  const int* in;
  int* out;
  int which;
};

extern "C" __global__ void previous(const __grid_constant__ Params p) {
  const int thread = ptx::thread_index(), i = ptx::block_x() * 64 + thread;
  ptx::let_next_kernel_start();
  if (p.which == 1) p.out[i] = p.in[i] + 1;  // before it waits
  if (p.which == 2 && thread < 32) p.out[i] = p.in[i] + 1;
  if (p.which != 3) ptx::wait_for_previous_kernel();
  if (p.which == 4) ptx::sync_threads();
  if (p.which != 1 && !(p.which == 2 && thread < 32)) p.out[i] = p.in[i] + 1;
}
