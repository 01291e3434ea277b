// Online softmax over tiles of scores, in base 2: weights are exp2 of scores
// times scale * log2(e), less the running maximum of their row.
#pragma once
#include "normalise.cuh"
#include "products.cuh"

namespace kgen {

// A lane holds rows g and g+8 of each block of 16: Rows = 2 * MTiles of them.
// `sum` is the lane's own share until finish() adds up the four lanes of a row.
template <int MTiles>
struct Softmax {
  float maximum[MTiles][2], sum[MTiles][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[m][h] = -ptx::infinity(), sum[m][h] = 0.f;
  }

  // Turns the scores of the lane's row h of block m into weights and returns the
  // factor for the row's output so far. scale_log2 is the factor from a score to its
  // exponent of 2; it is positive.
  template <int Keys>
  __device__ __forceinline__ float weigh_row(Accumulator<MTiles, Keys>& scores, int m, int h, float scale_log2) {
    float top = scores.block[m][0][2 * h];
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) top = ptx::maximum(top, ptx::maximum(scores.block[m][n][2 * h], scores.block[m][n][2 * h + 1]));
    top = ptx::maximum(top, ptx::shuffle_xor(top, 1));
    top = ptx::maximum(top, ptx::shuffle_xor(top, 2));
    top = ptx::maximum(top, maximum[m][h]);
    // A row that has seen no key yet has maximum -inf; -inf - -inf is NaN.
    const float shift = top == -ptx::infinity() ? 0.f : top * scale_log2;
    const float rescale = ptx::exp2_approx(ptx::multiply_add(maximum[m][h], scale_log2, -shift));
    maximum[m][h] = top;
    float added = 0.f;
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 2 * h; i < 2 * h + 2; ++i) {
        scores.block[m][n][i] = ptx::exp2_approx(ptx::multiply_add(scores.block[m][n][i], scale_log2, -shift));
        added += scores.block[m][n][i];
      }
    }
    sum[m][h] = ptx::multiply_add(sum[m][h], rescale, added);
    return rescale;
  }

  // The same for all rows. The output so far is to be multiplied by `rescale`.
  template <int Keys>
  __device__ __forceinline__ void weigh(Accumulator<MTiles, Keys>& scores, float (&rescale)[MTiles][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) rescale[m][h] = weigh_row(scores, m, h, scale_log2);
  }

  // The same, and rescales the output.
  template <int Keys, int Dim>
  __device__ __forceinline__ void update(Accumulator<MTiles, Keys>& scores, Accumulator<MTiles, Dim>& output, float scale_log2) {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) output.scale_row(m, h, weigh_row(scores, m, h, scale_log2));
  }

  template <int Threads>
  __device__ __forceinline__ void store_sums(float (&parked)[2 * MTiles][Threads], int thread) const {
#pragma unroll
    for (int i = 0; i < 2 * MTiles; ++i) parked[i][thread] = sum[i / 2][i % 2];
  }
  template <int Threads>
  __device__ __forceinline__ void load_sums(const float (&parked)[2 * MTiles][Threads], int thread) {
#pragma unroll
    for (int i = 0; i < 2 * MTiles; ++i) sum[i / 2][i % 2] = parked[i][thread];
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] += ptx::shuffle_xor(sum[m][h], 1);
        sum[m][h] += ptx::shuffle_xor(sum[m][h], 2);
      }
  }
};

}  // namespace kgen
