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
  // Before any return: what comes next on the stream waits for this kernel alone, so this
  // one must not end before the one ahead has.
  ptx::wait_for_previous_kernel();
  if (head >= params.q_heads || begin >= end) return;

  using Columns = MergeColumns<Config>;
  constexpr int at_a_time = 64 / columns;
  static_assert(at_a_time <= 32, "a lane for each log-sum-exp");
  Columns part[at_a_time];  // folded into the first
  float lse[at_a_time];
  auto place = [&](int slot) { return static_cast<long long>(slot) * params.q_heads + head; };
  auto output_of = [&](int slot) { return reinterpret_cast<Columns*>(static_cast<float*>(params.partial_out) + place(slot) * dim + lane * columns); };
  auto lse_of = [&](int slot) { return static_cast<float*>(params.partial_lse) + place(slot); };
  auto fold_onto = [&](Columns& before, float& before_lse, const Columns& after, float after_lse) {
    const Fold by = fold_of(before_lse, after_lse);
    before_lse = by.lse;
#pragma unroll
    for (int c = 0; c < columns; ++c) before.x[c] = fold(by, before.x[c], after.x[c]);
  };

  int groups = 0;  // of at_a_time parts; those so far
  for (int first = begin;; first += at_a_time, ++groups) {
    const int parts = end - first;
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      if (i < parts) part[i] = *output_of(first + i);
    }
    const float lane_lse = lane < at_a_time && lane < parts ? *lse_of(first + lane) : 0.f;
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) lse[i] = ptx::shuffle(lane_lse, i);
#pragma unroll
    for (int distance = 1; distance < at_a_time; distance *= 2) {
#pragma unroll
      for (int i = 0; i + distance < at_a_time; i += 2 * distance) {
        if (i + distance < parts) fold_onto(part[i], lse[i], part[i + distance], lse[i + distance]);
      }
    }
    const Part group = {groups, parts <= at_a_time};
    for (int level = 0, levels = group.levels(); levels >> level > 0; ++level) {
      if ((levels >> level & 1) == 0) continue;
      const int kept = begin + (((groups >> level) - 1) << level) * at_a_time;  // where what the level holds begins
      Columns before = *output_of(kept);
      float before_lse = ptx::shuffle(lane == 0 ? *lse_of(kept) : 0.f, 0);
      fold_onto(before, before_lse, part[0], lse[0]);
      part[0] = before, lse[0] = before_lse;
    }
    if (group.last) break;
    const int kept = begin + (groups & (groups + 1)) * at_a_time;  // the first of all that is folded
    *output_of(kept) = part[0];
    if (lane == 0) *lse_of(kept) = lse[0];
  }
#if KGEN_SINK_LOGITS
  const float factor = folded_normaliser(lse[0], pointer<float>(params.sink_logits)[head] * log2_e, true);
#else
  const float factor = folded_normaliser(lse[0], 0.f, false);
#endif
  unsigned char* out = static_cast<unsigned char*>(params.out) + 2 * (token * static_cast<long long>(params.out_token_stride) + head * dim);
#pragma unroll
  for (int c = 0; c < columns; c += 2) {
    *reinterpret_cast<uint32_t*>(out + 2 * (lane * columns + c)) = ptx::pack<typename Config::Element>(part[0].x[c] * factor, part[0].x[c + 1] * factor);
  }
  if (lane == 0 && params.lse != nullptr) {
    static_cast<float*>(params.lse)[static_cast<long long>(token) * params.q_heads + head] = lse[0] * ln_2;
  }
}

}  // namespace kgen
