// merge: the partial results of a token's splits to its output. One warp a
// (token, query head): L = log sum exp L_i, O = sum exp(L_i - L) O_i.
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
  if (head >= params.q_heads) return;
  const int begin = pointer<int32_t>(params.slot_begin)[token], end = pointer<int32_t>(params.slot_begin)[token + 1];
  if (begin >= end) return;

  const float* partial_lse = pointer<float>(params.partial_lse);
  float maximum = -ptx::infinity();
  for (int slot = begin; slot < end; ++slot) maximum = ptx::maximum(maximum, partial_lse[static_cast<long long>(slot) * params.q_heads + head]);
  float sum = 0.f, output[columns] = {};
  for (int slot = begin; slot < end; ++slot) {
    const long long vector = static_cast<long long>(slot) * params.q_heads + head;
    const float lse = partial_lse[vector];
    if (lse == -ptx::infinity()) continue;  // this split saw no key
    const float weight = ptx::exp2_approx(lse - maximum);
    sum += weight;
    const float* part = pointer<float>(params.partial_out) + vector * dim + lane * columns;
#pragma unroll
    for (int c = 0; c < columns; ++c) output[c] = ptx::multiply_add(part[c], weight, output[c]);
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
