// Online softmax over tiles of scores, in base 2: weights are exp2 of scores
// times scale * log2(e), less a running maximum of their row.
#pragma once
#include "normalise.cuh"
#include "products.cuh"

namespace kgen {

// The most that a lane's weights of a tile may add up to where a maximum moves only when it
// must: see attend_consumer. Weights so large are within the range of their type, and their
// products with values and the sums of those within that of fp32.
template <class Element>
constexpr float most_weight = 0x1p60f;
template <>
constexpr float most_weight<ptx::fp16> = 0x1p15f;

// The sum of the four lanes that have a row together.
__device__ __forceinline__ float quad_sum(float x) {
  x += ptx::shuffle_xor(x, 1);
  return x + ptx::shuffle_xor(x, 2);
}

// A lane holds rows g and g+8 of each block of 16: Rows = 2 * MTiles of them.
// `sum` is the lane's own share until finish() adds up the four lanes of a row.
template <int MTiles>
struct Softmax {
  // In one chain of comparisons or sums each waits for the one before it. Where a lane
  // has more rows, these are chains enough, and it has no registers to spare.
  static constexpr int chains = MTiles == 1 ? 2 : 1;

  // Where it is lazy, follow_row lets a row's maximum follow the true one only when weights
  // would exceed 2^slack: most tiles then leave the output so far as it is. No digit of the
  // result is lost by that, as weights, sums and outputs are floating-point numbers.
  static constexpr bool lazy = MTiles == 1;
  static constexpr float slack = 8.f;

  // The least that a row's first weights may add up to where nothing is subtracted from their exponents: of a tile's 128 the largest is then
  // above 2^-68, and weights down to 2^-58 of it have full precision.
  static constexpr float least_weight = 0x1p-60f;

  float maximum[MTiles][2], sum[MTiles][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[m][h] = -ptx::infinity(), sum[m][h] = 0.f;
  }

  // The largest score of the lane's row h of block m.
  template <int Keys>
  __device__ __forceinline__ static float row_maximum(const Accumulator<MTiles, Keys>& scores, int m, int h) {
    float tops[2] = {scores.block[m][0][2 * h], scores.block[m][0][2 * h + 1]};
#pragma unroll
    for (int n = 1; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) tops[i % chains] = ptx::maximum(tops[i % chains], scores.block[m][n][2 * h + i]);
    }
    float top = ptx::maximum(tops[0], tops[1]);
    top = ptx::maximum(top, ptx::shuffle_xor(top, 1));
    return ptx::maximum(top, ptx::shuffle_xor(top, 2));
  }

  // Lets that row's maximum follow a tile of scores, and returns the factor for the row's
  // weights and output so far. scale_log2 is the factor from a score to its exponent of 2;
  // it is positive.
  template <int Keys>
  __device__ __forceinline__ float follow_row(const Accumulator<MTiles, Keys>& scores, int m, int h, float scale_log2) {
    const float before = maximum[m][h], top = ptx::maximum(row_maximum(scores, m, h), before);
    if (lazy && (top - before) * scale_log2 <= slack) return 1.f;
    return move(m, h, top, scale_log2);
  }

  // Turns that row's scores into weights, and returns the sum of the lane's. Plain: scores are exponents,
  // from which nothing is subtracted.
  template <bool Plain = false, int Keys>
  __device__ __forceinline__ float weigh_row(Accumulator<MTiles, Keys>& scores, int m, int h, float scale_log2) const {
    const float shift = Plain ? 0.f : this->shift(m, h, scale_log2);
    float added[chains];
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores.block[m][n][2 * h + i];
        score = ptx::exp2_approx(Plain ? score : ptx::multiply_add(score, scale_log2, -shift));
        added[i % chains] = n == 0 && i < chains ? score : added[i % chains] + score;
      }
    }
    return chains == 1 ? added[0] : added[0] + added[chains - 1];
  }

  // Turns that row's scores into the exponents of its weights, which are then plain.
  template <int Keys>
  __device__ __forceinline__ void make_exponents(Accumulator<MTiles, Keys>& scores, int m, int h, float scale_log2) const {
    const float shift = this->shift(m, h, scale_log2);
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) scores.block[m][n][2 * h + i] = ptx::multiply_add(scores.block[m][n][2 * h + i], scale_log2, -shift);
  }

  // What is subtracted from the exponents. A row that has seen no key yet has maximum
  // -inf; -inf - -inf is NaN.
  __device__ __forceinline__ float shift(int m, int h, float scale_log2) const {
    return maximum[m][h] == -ptx::infinity() ? 0.f : maximum[m][h] * scale_log2;
  }

  // Lets rows that have seen no key yet begin with a tile's maximum, or with 0 where that is at most
  // `near` from it. Returns whether every row of the warp has seen one now.
  template <int Keys>
  __device__ __forceinline__ bool start(const Accumulator<MTiles, Keys>& scores, float near) {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float top = row_maximum(scores, m, h);
        if (maximum[m][h] == -ptx::infinity()) maximum[m][h] = -near <= top && top <= near ? 0.f : top;
      }
    return started();
  }

  // Whether every row of the warp has seen a key.
  __device__ __forceinline__ bool started() const {
    bool started = true;
#pragma unroll
    for (int m = 0; m < MTiles; ++m) started = started && maximum[m][0] != -ptx::infinity() && maximum[m][1] != -ptx::infinity();
    return !ptx::any(!started);
  }

  // Whether no row of the warp subtracts anything.
  __device__ __forceinline__ bool plain() const {
    bool plain = true;
#pragma unroll
    for (int m = 0; m < MTiles; ++m) plain = plain && maximum[m][0] == 0.f && maximum[m][1] == 0.f;
    return !ptx::any(!plain);
  }

  // Moves a row's maximum, and returns as follow_row.
  __device__ __forceinline__ float move(int m, int h, float to, float scale_log2) {
    const float before = maximum[m][h];
    maximum[m][h] = to;
    return ptx::exp2_approx(ptx::multiply_add(before, scale_log2, -shift(m, h, scale_log2)));
  }

  // All of it, row by row.
  template <int Keys, int Dim>
  __device__ __forceinline__ void update(Accumulator<MTiles, Keys>& scores, Accumulator<MTiles, Dim>& output, float scale_log2) {
#pragma unroll
    for (int m = 0; m < MTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float rescale = follow_row(scores, m, h, scale_log2);
        sum[m][h] = ptx::multiply_add(sum[m][h], rescale, weigh_row(scores, m, h, scale_log2));
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
      for (int h = 0; h < 2; ++h) sum[m][h] = quad_sum(sum[m][h]);
  }
};

}  // namespace kgen
