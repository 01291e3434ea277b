// merge: the partial results of a token's splits to its output, as tile/fold.cuh says. One
// warp a (token, query head). It may start before the kernel ahead of it on the stream has
// ended, which makes the partial results. Of more than a warp folds at a time, what is folded takes
// their place.
#pragma once
#include "../abi.cuh"
#include "../tile/fold.cuh"
#include "../tile/pointer.cuh"

namespace kgen {

// A lane's columns of a row.
template <class Config>
struct MergeColumns {
  static constexpr int count = Config::v_head_dim / 32;
  alignas(count % 4 == 0 ? 16 : 4 * count) float x[count];
};

template <class Config>
__device__ __forceinline__ void merge(const MergeParams& params) {
  constexpr int dim = Config::v_head_dim, columns = dim / 32;
  const int token = ptx::block_x(), lane = ptx::lane_index();
  const int head = ptx::block_y() * Config::warps + ptx::warp_index();
  const int begin = pointer<int32_t>(params.slot_begin)[token], end = pointer<int32_t>(params.slot_begin)[token + 1];
  if (head >= params.q_heads || begin >= end) {
    // What comes next on the stream waits for this kernel alone, so it must not end
    // before the one ahead has.
    ptx::wait_for_previous_kernel();
    return;
  }

  using Columns = MergeColumns<Config>;
  constexpr int at_a_time = 64 / columns;
  static_assert(at_a_time <= 32, "a lane for each log-sum-exp");
  float* const first_output = static_cast<float*>(params.partial_out) + (static_cast<long long>(begin) * params.q_heads + head) * dim + lane * columns;
  float* const first_lse = static_cast<float*>(params.partial_lse) + static_cast<long long>(begin) * params.q_heads + head;
  const long long slot_stride = params.q_heads * dim;
  auto output_of = [&](int i) { return reinterpret_cast<Columns*>(first_output + i * slot_stride); };
  auto lse_of = [&](int i) { return first_lse + static_cast<long long>(i) * params.q_heads; };
  auto fold_onto = [&](Columns& before, const Columns& after, const Fold& by) {
#pragma unroll
    for (int c = 0; c < columns; ++c) before.x[c] = fold(by, before.x[c], after.x[c]);
  };

  Columns part[at_a_time];  // folded into the first
  float lse;                // of the lane's part; in the end, of them all
  int groups = 0;           // of at_a_time parts; those so far
  ptx::wait_for_previous_kernel();
  for (int first = 0;; first += at_a_time, ++groups) {
    const int parts = end - begin - first;
    // Walked: output_of(first + i) for each would take so many registers more that a block fewer runs at a time.
    Columns* from = output_of(first);
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      if (i < parts) part[i] = *from;
      from = reinterpret_cast<Columns*>(reinterpret_cast<float*>(from) + slot_stride);
    }
    lse = lane < at_a_time && lane < parts ? *lse_of(first + lane) : 0.f;
    // Each lane folds its part's log-sum-exp: how all pairs of a level fold is known at once.
#pragma unroll
    for (int distance = 1; distance < at_a_time; distance *= 2) {
      const Fold by = fold_of(lse, ptx::shuffle_xor(lse, distance));
      if (lane + distance < parts) lse = by.lse;
#pragma unroll
      for (int i = 0; i + distance < at_a_time; i += 2 * distance) {
        const Fold pair = {ptx::shuffle(by.before, i), ptx::shuffle(by.after, i), 0.f};
        if (i + distance < parts) fold_onto(part[i], part[i + distance], pair);
      }
    }
    lse = ptx::shuffle(lse, 0);
    const Part group = {groups, parts <= at_a_time};
    for_each_level(group, [&](int level) {
      const int kept = (((groups >> level) - 1) << level) * at_a_time;  // where what the level holds begins
      Columns before = *output_of(kept);
      const Fold by = fold_of(ptx::shuffle(lane == 0 ? *lse_of(kept) : 0.f, 0), lse);
      fold_onto(before, part[0], by);
      part[0] = before, lse = by.lse;
    });
    if (group.last) break;
    const int kept = (groups & (groups + 1)) * at_a_time;  // the first of all that is folded
    *output_of(kept) = part[0];
    if (lane == 0) *lse_of(kept) = lse;
  }
#if KGEN_SINK_LOGITS
  const float factor = folded_normaliser(lse, pointer<float>(params.sink_logits)[head] * log2_e, true);
#else
  const float factor = folded_normaliser(lse, 0.f, false);
#endif
  unsigned char* out = static_cast<unsigned char*>(params.out) + 2 * (token * static_cast<long long>(params.out_token_stride) + head * dim);
#pragma unroll
  for (int c = 0; c < columns; c += 2) {
    *reinterpret_cast<uint32_t*>(out + 2 * (lane * columns + c)) = ptx::pack<typename Config::Element>(part[0].x[c] * factor, part[0].x[c + 1] * factor);
  }
  if (lane == 0 && params.lse != nullptr) {
    static_cast<float*>(params.lse)[static_cast<long long>(token) * params.q_heads + head] = lse * ln_2;
  }
}

}  // namespace kgen
