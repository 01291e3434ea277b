// merge: the partial results of a token's splits to its output. One warp a
// (token, query head): L = log sum exp L_i, O = sum exp(L_i - L) O_i. It may start
// before the kernel ahead of it on the stream has ended, which makes the partial results.
#pragma once
#include "../abi.cuh"
#include "../tile/normalise.cuh"
#include "../tile/pointer.cuh"

namespace kgen {

template <class Config>
__device__ __forceinline__ void merge(const MergeParams& params) {
  constexpr int dim = Config::v_head_dim, columns = dim / 32;
  const int token = ptx::block_x(), lane = ptx::lane_index();
  const int head = ptx::block_y() * Config::warps + ptx::warp_index();
  const int begin = pointer<int32_t>(params.slot_begin)[token], end = pointer<int32_t>(params.slot_begin)[token + 1];
  // Before any return: what comes next on the stream waits for this kernel alone, so this
  // one must not end before the one ahead has.
  ptx::wait_for_previous_kernel();
  if (head >= params.q_heads || begin >= end) return;

  // Lane i looks at the slots begin + i, begin + i + 32, ...
  const float* partial_lse = pointer<float>(params.partial_lse);
  auto lse_of = [&](int slot) { return partial_lse[static_cast<long long>(slot) * params.q_heads + head]; };
  float maximum = -ptx::infinity();
  for (int slot = begin + lane; slot < end; slot += 32) maximum = ptx::maximum(maximum, lse_of(slot));
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) maximum = ptx::maximum(maximum, ptx::shuffle_xor(maximum, mask));

  float sum = 0.f, output[columns] = {};
  const float shift = maximum == -ptx::infinity() ? 0.f : maximum;  // no split saw a key
  for (int first = begin; first < end; first += 32) {
    const float lane_weight = first + lane < end ? ptx::exp2_approx(lse_of(first + lane) - shift) : 0.f;
    const int count = end - first < 32 ? end - first : 32;
#pragma unroll 8  // loads under way at a time
    for (int i = 0; i < count; ++i) {
      const float weight = ptx::shuffle(lane_weight, i);
      const float2* part = reinterpret_cast<const float2*>(
          pointer<float>(params.partial_out) + (static_cast<long long>(first + i) * params.q_heads + head) * dim + lane * columns);
      sum += weight;
#pragma unroll
      for (int c = 0; c < columns / 2; ++c) {
        const float2 x = part[c];
        output[2 * c] = ptx::multiply_add(x.x, weight, output[2 * c]);
        output[2 * c + 1] = ptx::multiply_add(x.y, weight, output[2 * c + 1]);
      }
    }
  }
#if KGEN_SINK_LOGITS
  const float factor = normaliser(sum, pointer<float>(params.sink_logits)[head] * log2_e - maximum, true);
#else
  const float factor = normaliser(sum, 0.f, false);
#endif
  unsigned char* out = static_cast<unsigned char*>(params.out) + 2 * (token * static_cast<long long>(params.out_token_stride) + head * dim);
#pragma unroll
  for (int c = 0; c < columns; c += 2) {
    *reinterpret_cast<uint32_t*>(out + 2 * (lane * columns + c)) = ptx::pack<typename Config::Element>(output[c] * factor, output[c + 1] * factor);
  }
  if (lane == 0 && params.lse != nullptr) {
    static_cast<float*>(params.lse)[static_cast<long long>(token) * params.q_heads + head] = log_sum_exp2(maximum, sum, 1.f) * ln_2;
  }
}

}  // namespace kgen
