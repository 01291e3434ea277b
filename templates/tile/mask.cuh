// Which keys a row sees, and what is done to its scores before the softmax.
#pragma once
#include "key_tile.cuh"
#include "normalise.cuh"
#include "products.cuh"

namespace kgen {

// The keys of a tile's run that one query row sees: tokens below `end`, and of these
// only the ones from `begin` on or below `sinks`.
struct VisibleKeys {
  int end, begin, sinks;

  __device__ __forceinline__ VisibleKeys counted_from(int token) const { return {end - token, begin - token, sinks - token}; }

#if KGEN_WINDOW
  // Of the tokens 8n and 8n + 1 below 128, bit 2n + i is set for those that are seen: a predicate for each then
  // takes a seventh of an instruction, and not four.
  __device__ __forceinline__ uint32_t pairs() const {
    uint32_t seen = ~pairs_below(begin);
#if KGEN_SINK_TOKENS
    seen |= pairs_below(sinks);
#endif
    return seen & pairs_below(end);
  }
  __device__ __forceinline__ static uint32_t pairs_below(int token) {
    const unsigned below = token < 0 ? 0 : token;
    return ptx::low_bits((below + 7) / 8 + (below + 6) / 8);
  }
#endif
};

// `index` is the query token's place in its sequence's block, `position` its position,
// `offset` that of the segment's token 0 in the sequence.
template <class Config>
__device__ __forceinline__ VisibleKeys visible_keys(const KeyTile& tile, int index, int position, int offset) {
  const int causal_end = index + tile.causal + 1;
  VisibleKeys keys = {causal_end < tile.end ? causal_end : tile.end, 0, 0};
#if KGEN_WINDOW
  keys.begin = position - offset - Config::window + 1;
#endif
#if KGEN_SINK_TOKENS
  keys.sinks = Config::sink_tokens - offset;
#endif
  return keys;
}

// The greatest position of rows where nobody has looked for it.
constexpr int any_position = 0x7fffffff;

// True where some row of the item may not see some of the tile's Keys tokens;
// `first_index` is the index of the item's first query token, `last_position` the greatest position of any.
template <class Config, int Keys>
__device__ __forceinline__ bool needs_mask(const KeyTile& tile, int first_index, int last_position) {
  const int last = tile.begin + Keys - 1;
#if KGEN_WINDOW
  static_assert(any_position - Config::window >= (1 << 30) - 1, "who has not looked masks every tile: positions are below 2^30");
#if KGEN_SHARED_DECODE
  return true;  // members have places of their own for a tile's keys
#endif
  const VisibleKeys keys = visible_keys<Config>(tile, first_index, last_position, tile.offset);
  if (tile.begin < keys.begin && last >= keys.sinks) return true;
#endif
  return last >= tile.end || last > first_index + tile.causal;
}

#if KGEN_SOFT_CAP
// Four reciprocals by one, that of a product. None may be 2^32 or more, and where one is no number, all are.
__device__ __forceinline__ void reciprocals_together(float (&x)[4]) {
  const float left = x[0] * x[1], right = x[2] * x[3], both = ptx::reciprocal_approx(left * right), of_left = right * both, of_right = left * both;
  const float y[4] = {x[1] * of_left, x[0] * of_left, x[3] * of_right, x[2] * of_right};
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = y[i];
}

// cap * tanh(x), made an exponent of 2, of a score that `exponent` makes 2x * log2(e): by tanh x = 1 - 2 / (exp(2x) + 1). (The quotient by an
// approximate reciprocal: a division takes ten instructions more, and a call.) That is off by what
// rounding a 1 costs, however small x is: of a cap, up to 2^-22. Under a large cap, scores are
// hardly above that, so where x is small it is by tanh x = x - x^3 / 3 + 2 x^5 / 15.
// Together: four scores of a row have one reciprocal, where the unit for these and for exponentials sets the pace.
template <class Config, bool Together = false, int MTiles, int Keys>
__device__ __forceinline__ void cap_scores(Accumulator<MTiles, Keys>& scores, float exponent) {
  constexpr bool large = Config::soft_cap > 64.f;  // no published model's is
  constexpr float small = 1.f / 8.f;               // the next term is below 2^-22 of x
  constexpr float cap = Config::soft_cap * log2_e;
  static_assert(Keys % 16 == 0, "scores of a row by four");
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int n = 0; n < Keys / 8; n += 2)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        auto score = [&](int i) -> float& { return scores.block[m][n + i / 2][2 * h + i % 2]; };
        float denominator[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          score(i) *= exponent;
          // Of an exponent of 31 and more, tanh x is 1.
          denominator[i] = 1.f + ptx::exp2_approx(Together ? ptx::minimum_or_nan(score(i), 31.f) : score(i));
        }
        if (Together) reciprocals_together(denominator);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float reciprocal = Together ? denominator[i] : ptx::reciprocal_approx(denominator[i]);
          const float x = score(i) * (ln_2 / 2.f), square = x * x;
          score(i) = ptx::multiply_add(-2.f * cap, reciprocal, cap);
          if (large && square < small * small) {
            score(i) = cap * x * ptx::multiply_add(square, ptx::multiply_add(square, 2.f / 15.f, -1.f / 3.f), 1.f);
          }
        }
      }
}
#endif

// Sets the scores of keys that their row does not see to -inf. visible(row) gives
// the keys of a row of the tile; the warp's rows start at `first_row`, the tile's
// keys at token `begin`.
template <int MTiles, int Keys, class Visible>
__device__ __forceinline__ void mask_scores(Accumulator<MTiles, Keys>& scores, int first_row, int begin, int lane, Visible visible) {
  lane = ptx::here(lane);
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Counted from the lane's first key, so that each comparison is with a constant.
      const VisibleKeys keys = visible(first_row + 16 * m + 8 * h + lane / 4).counted_from(begin + 2 * (lane % 4));
#if KGEN_WINDOW
      static_assert(Keys <= 128, "a bit for each of a lane's keys");
      const uint32_t seen = keys.pairs();
      auto sees = [&](int n, int i) { return (seen >> (2 * n + i) & 1) != 0; };
#else
      auto sees = [&](int n, int i) { return 8 * n + i < keys.end; };
#endif
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!sees(n, i)) scores.block[m][n][2 * h + i] = -ptx::infinity();
        }
    }
}

}  // namespace kgen
