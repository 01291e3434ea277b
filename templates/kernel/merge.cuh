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

  // The first partial outputs are on their way while their weights are worked out.
  constexpr int at_a_time = 64 / columns;
  static_assert(at_a_time <= 32, "a lane for each weight");
  struct alignas(columns % 4 == 0 ? 16 : 4 * columns) Columns { float x[columns]; };
  Columns part[at_a_time];
  auto load_parts = [&](int first) {
    const float* source = pointer<float>(params.partial_out) + lane * columns;
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      if (first + i >= end) break;
      part[i] = *reinterpret_cast<const Columns*>(source + (static_cast<long long>(first + i) * params.q_heads + head) * dim);
    }
  };
  load_parts(begin);

  // Lane i looks at the slots begin + i, begin + i + 32, ...
  const float* partial_lse = pointer<float>(params.partial_lse);
  auto lse_of = [&](int slot) { return partial_lse[static_cast<long long>(slot) * params.q_heads + head]; };
  float maximum = -ptx::infinity();
  for (int slot = begin + lane; slot < end; slot += 32) maximum = ptx::maximum(maximum, lse_of(slot));
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) maximum = ptx::maximum(maximum, ptx::shuffle_xor(maximum, mask));

  float sum = 0.f, output[columns] = {};
  const float shift = maximum == -ptx::infinity() ? 0.f : maximum;  // no split saw a key
  for (int first = begin; first < end; first += at_a_time) {
    if (first > begin) load_parts(first);
    const float lane_weight = lane < at_a_time && first + lane < end ? ptx::exp2_approx(lse_of(first + lane) - shift) : 0.f;
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      if (first + i >= end) break;
      const float weight = ptx::shuffle(lane_weight, i);
      sum += weight;
#pragma unroll
      for (int c = 0; c < columns; ++c) output[c] = ptx::multiply_add(part[i].x[c], weight, output[c]);
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
