// Kernels that use registers, shared memory and the stack. NVRTC made the cubin
// and the log beside this file: go test ./gen/build -run TestCompilers -update
extern "C" __global__ void __launch_bounds__(128) shared(float* out, const float* in) {
  __shared__ float s[256];
  s[threadIdx.x] = in[threadIdx.x];
  s[threadIdx.x + 128] = 0;
  __syncthreads();
  out[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024) spilling(float* out, const float* in) {
  float x[120];
#pragma unroll
  for (int i = 0; i < 120; i++) x[i] = in[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 120; i++) out[i * 1024 + threadIdx.x] = x[i] * x[119 - i];
}
