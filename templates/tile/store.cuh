// The results of a tile of rows.
#pragma once
#include "item.cuh"

namespace kgen {

// A warp's rows of an item, and where their results go: lane i knows it of row i, for all lanes. (Each
// lane could find it for the rows that it stores, but this code runs once an item, so that its
// instructions come from memory.) Of rows that do not exist the lanes have the item's first.
struct WarpRows {
  int first, count;  // of the tile's rows; how many of these exist
  bool final;
  unsigned char* of_lane;  // where a row's output begins
  float* lse_of_lane;      // where its log-sum-exp goes; null: nowhere

  __device__ __forceinline__ unsigned char* results(int row) const { return ptx::shuffle(of_lane, row - first); }
};

template <class Config, int MTiles>
__device__ __forceinline__ WarpRows warp_rows(const AttendParams& params, const Item& item, int kv_head, int first_row, int lane) {
  static_assert(16 * MTiles <= 32, "a lane for each row");
  first_row &= 0x7ffffff0;  // as it is: knowing this, the compiler needs two hundred instructions less
  WarpRows rows;
  rows.first = first_row, rows.count = own_rows<Config>(item), rows.final = is_final(item);
  const bool exists = first_row + lane < rows.count;
  const RowResult r = row_result<Config>(params, item, kv_head, exists ? first_row + lane : 0);
  rows.of_lane = rows.final ? output_row<Config>(params, r) : partial_row<Config>(params, r);
  float* const all = static_cast<float*>(rows.final ? params.lse : params.partial_lse);
  rows.lse_of_lane = exists && lane < 16 * MTiles && all != nullptr ? all + r.vector : nullptr;
  return rows;
}

// Hands each lane's pairs of adjacent outputs, times their row's factor, of the blocks
// of eight columns from first to first + Blocks to stage(row, below, block, x, y), for the row
// `below` behind `row`. The rows, staged in `tile`, then go to so many bytes behind the
// beginnings of their results, 16 bytes a lane and whole lines at a time.
template <class Config, int Blocks, int MTiles, class Tile, class Stage>
__device__ __forceinline__ void store_staged(const WarpRows& rows, int behind, const Accumulator<MTiles, Config::v_head_dim>& output, const float (&factor)[MTiles][2],
                                             int first, int lane, const Tile& tile, Stage stage) {
  constexpr int chunks = Config::v_head_dim / chunk_elements;
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
        const float(&pair)[4] = output.block[m][first + n];
        stage(rows.first + lane / 4, 16 * m + 8 * h, n, pair[2 * h] * factor[m][h], pair[2 * h + 1] * factor[m][h]);
      }
  ptx::sync_warp();
  // A lane has the same chunk of every so many rows.
  static_assert(32 % chunks == 0, "whole rows a turn");
  constexpr int rows_a_turn = 32 / chunks, turns = 16 * MTiles / rows_a_turn, at_a_time = turns < 8 ? turns : 8;
  const int first_row = rows.first + lane / chunks, chunk = lane % chunks;
#pragma unroll 1
  for (int first_turn = 0; first_turn < turns; first_turn += at_a_time) {
    auto below = [&](int i) { return rows_a_turn * (first_turn + i); };
    uint4 elements[at_a_time];
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) elements[i] = ptx::load_16(tile.bytes + byte_below<Tile, rows_a_turn>(first_row, below(i), chunk));
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      unsigned char* const to = rows.results(first_row + below(i)) + behind + chunk * chunk_bytes;
      if (first_row + below(i) < rows.count) ptx::store_16(to, elements[i]);
    }
  }
}

// What a warp's rows are multiplied by at the end, and their log-sum-exps, base 2.
template <int MTiles>
struct RowEnds {
  float factor[MTiles][2], lse[MTiles][2];
};

// Writes one warp's rows by way of its own rows of the query tile; fp32 rows of partial results in two halves, for
// which there is room. Rows that do not exist have any ends.
template <class Config, int MTiles, class Tile>
__device__ __forceinline__ void store_rows(const WarpRows& rows, const Accumulator<MTiles, Config::v_head_dim>& output, const RowEnds<MTiles>& ends, int lane, Tile& tile) {
  constexpr int dim = Config::v_head_dim, blocks = dim / 8;
  lane &= 31;  // see warp_rows
  float lse = 0.f;  // of the lane's row
#pragma unroll
  for (int i = 0; i < 2 * MTiles; ++i) {
    const float of_eight = ptx::shuffle(ends.lse[i / 2][i % 2], lane % 8 * 4);
    if (lane / 8 == i) lse = of_eight;
  }
  if (rows.lse_of_lane != nullptr) *rows.lse_of_lane = rows.final ? lse * ln_2 : lse;
  if (rows.final) {
    store_staged<Config, blocks>(rows, 0, output, ends.factor, 0, lane, tile, [&](int row, int below, int n, float x, float y) {
      *reinterpret_cast<uint32_t*>(tile.bytes + byte_below<Tile, 8>(row, below, n) + 4 * (lane % 4)) = ptx::pack<typename Config::Element>(x, y);
    });
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_staged<Config, blocks / 2>(rows, half * (dim / 2) * 4, output, ends.factor, half * (blocks / 2), lane, tile,
                                     [&](int row, int below, int n, float x, float y) {
                                       *reinterpret_cast<float2*>(tile.bytes + byte_below<Tile, 8>(row, below, 2 * n + lane % 4 / 2) + 8 * (lane % 2)) = make_float2(x, y);
                                     });
    ptx::sync_warp();  // the next half's staging overwrites what other lanes read
  }
}

// The ends of rows whose softmax is finished.
template <class Config, int MTiles>
__device__ __forceinline__ RowEnds<MTiles> row_ends(const AttendParams& params, const Item& item, int kv_head, const Softmax<MTiles>& softmax,
                                                    float scale_log2, int first_row, int lane) {
  RowEnds<MTiles> ends;
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float maximum = softmax.maximum[m][h], sum = softmax.sum[m][h];
      ends.factor[m][h] = row_normaliser<Config>(params, item, query_head<Config>(kv_head, first_row + 16 * m + 8 * h + lane / 4), maximum, sum, scale_log2);
      ends.lse[m][h] = log_sum_exp2(maximum, sum, scale_log2);
    }
  return ends;
}

}  // namespace kgen
