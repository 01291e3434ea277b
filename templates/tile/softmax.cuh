// Online softmax over tiles of scores, in base 2: weights are exp2 of scores
// times scale * log2(e), less a running maximum of their row.
#pragma once
#include "normalise.cuh"
#include "products.cuh"

namespace kgen {

// Where it is lazy, a row's `maximum` follows the true one only when weights would exceed
// 2^slack: most tiles then leave the output so far as it is. No digit of the result
// is lost by that, as weights, sums and outputs are floating-point numbers.
constexpr float slack = 8.f;

// A lane holds rows g and g+8 of each block of 16: Rows = 2 * MTiles of them.
// `sum` is the lane's own share until finish() adds up the four lanes of a row.
template <int MTiles>
struct Softmax {
  // In one chain of comparisons or sums each waits for the one before it. Where a lane
  // has more rows, these are chains enough, and it has no registers to spare.
  static constexpr int chains = MTiles == 1 ? 2 : 1;
  static constexpr bool lazy = MTiles == 1;

  float maximum[MTiles][2], sum[MTiles][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[m][h] = -ptx::infinity(), sum[m][h] = 0.f;
  }

  // Lets the maximum of the lane's row h of block m follow a tile of scores, and returns
  // the factor for the row's weights and output so far. scale_log2 is the factor from a
  // score to its exponent of 2; it is positive.
  template <int Keys>
  __device__ __forceinline__ float follow_row(const Accumulator<MTiles, Keys>& scores, int m, int h, float scale_log2) {
    float tops[2] = {scores.block[m][0][2 * h], scores.block[m][0][2 * h + 1]};
#pragma unroll
    for (int n = 1; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) tops[i % chains] = ptx::maximum(tops[i % chains], scores.block[m][n][2 * h + i]);
    }
    float top = ptx::maximum(tops[0], tops[1]);
    top = ptx::maximum(top, ptx::shuffle_xor(top, 1));
    top = ptx::maximum(top, ptx::shuffle_xor(top, 2));
    top = ptx::maximum(top, maximum[m][h]);
    if (lazy && (top - maximum[m][h]) * scale_log2 <= slack) top = maximum[m][h];
    const float before = maximum[m][h];
    maximum[m][h] = top;
    return lazy && top == before ? 1.f : ptx::exp2_approx(ptx::multiply_add(before, scale_log2, -shift(m, h, scale_log2)));
  }

  // Turns that row's scores into weights.
  template <int Keys>
  __device__ __forceinline__ void weigh_row(Accumulator<MTiles, Keys>& scores, int m, int h, float rescale, float scale_log2) {
    const float shift = this->shift(m, h, scale_log2);
    float added[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores.block[m][n][2 * h + i];
        score = ptx::exp2_approx(ptx::multiply_add(score, scale_log2, -shift));
        added[i % chains] += score;
      }
    }
    sum[m][h] = ptx::multiply_add(sum[m][h], rescale, added[0] + added[1]);
  }

  // What is subtracted from the exponents. A row that has seen no key yet has maximum
  // -inf; -inf - -inf is NaN.
  __device__ __forceinline__ float shift(int m, int h, float scale_log2) const {
    return maximum[m][h] == -ptx::infinity() ? 0.f : maximum[m][h] * scale_log2;
  }

  // follow_row for all rows. Where some row of the warp has a factor other than 1, it
  // returns true, and the output so far is to be multiplied by them.
  template <int Keys>
  __device__ __forceinline__ bool follow(const Accumulator<MTiles, Keys>& scores, float (&rescale)[MTiles][2], float scale_log2) {
    bool rescales = false;
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) rescale[m][h] = follow_row(scores, m, h, scale_log2), rescales = rescales || rescale[m][h] != 1.f;
    return ptx::any(rescales);
  }

  // weigh_row for all rows.
  template <int Keys>
  __device__ __forceinline__ void weigh(Accumulator<MTiles, Keys>& scores, const float (&rescale)[MTiles][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) weigh_row(scores, m, h, rescale[m][h], scale_log2);
  }

  // All of it, row by row.
  template <int Keys, int Dim>
  __device__ __forceinline__ void update(Accumulator<MTiles, Keys>& scores, Accumulator<MTiles, Dim>& output, float scale_log2) {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float rescale = follow_row(scores, m, h, scale_log2);
        weigh_row(scores, m, h, rescale, scale_log2);
        output.scale_row(m, h, rescale);
      }
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
