// The results of a tile of rows.
#pragma once
#include "item.cuh"

namespace kgen {

// A warp's rows of an item, and where their results go: lane i knows it of row i and those that follow it 32
// apart, for all lanes. (Each lane could find it for the rows that it stores, but this code runs once an item, so that
// its instructions come from memory.) Rows that do not exist have the output of the item's first and no log-sum-exp.
template <int MTiles>
struct WarpRows {
  int first, count;  // of the tile's rows; how many of these exist
  bool final;
  static constexpr int lane_rows = (16 * MTiles + 31) / 32;
  RowPlaces of_lane[lane_rows];

  __device__ __forceinline__ unsigned char* output(int row) const {
    const int i = row - first;
    unsigned char* place = ptx::shuffle(of_lane[0].output, i & 31);
#pragma unroll
    for (int n = 1; n < lane_rows; ++n) {
      unsigned char* const other = ptx::shuffle(of_lane[n].output, i & 31);
      if (i / 32 == n) place = other;
    }
    return place;
  }
};

template <class Config, int MTiles>
__device__ __forceinline__ WarpRows<MTiles> warp_rows(const AttendParams& params, const Item& item, int kv_head, int first_row, int lane) {
  first_row &= 0x7ffffff0;  // as it is: knowing this, the compiler needs two hundred instructions less
  WarpRows<MTiles> rows;
  rows.first = first_row, rows.count = own_rows<Config>(item.q_count), rows.final = is_final(item);
#pragma unroll
  for (int n = 0; n < rows.lane_rows; ++n) {
    const int row = 32 * n + lane;
    const bool exists = first_row + row < rows.count;
    rows.of_lane[n] = row_places<Config>(params, item, row_result<Config>(params, item, kv_head, exists ? first_row + row : 0));
    if (!exists || row >= 16 * MTiles) rows.of_lane[n].lse = nullptr;
  }
  return rows;
}

// Hands each lane's pairs of adjacent outputs, times their row's factor, of the blocks
// of eight columns from first to first + Blocks to stage(row, below, block, x, y), for the row
// `below` behind `row`. The rows, staged in `tile`, then go to so many bytes behind the
// beginnings of their results, 16 bytes a lane and whole lines at a time.
template <class Config, int Blocks, int MTiles, class Tile, class Stage>
__device__ __forceinline__ void store_staged(const WarpRows<MTiles>& rows, int behind, const Accumulator<MTiles, Config::v_head_dim>& output, const float (&factor)[MTiles][2],
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
  constexpr int rows_a_turn = 32 / chunks, turns = 16 * MTiles / rows_a_turn, at_a_time = turns < 8 ? turns : turns % 8 == 0 ? 8 : 4;
  static_assert(turns % at_a_time == 0, "whole rounds");
  const int first_row = rows.first + lane / chunks, chunk = lane % chunks;
#pragma unroll 1
  for (int first_turn = 0; first_turn < turns; first_turn += at_a_time) {
    auto below = [&](int i) { return rows_a_turn * (first_turn + i); };
    uint4 elements[at_a_time];
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) elements[i] = ptx::load_16(tile.bytes + byte_below<Tile, rows_a_turn>(first_row, below(i), chunk));
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      unsigned char* const to = rows.output(first_row + below(i)) + behind + chunk * chunk_bytes;
      if (first_row + below(i) < rows.count) ptx::store_16(to, elements[i]);
    }
  }
}

// What a warp's rows are multiplied by at the end, and their log-sum-exps, base 2.
template <int MTiles>
struct RowEnds {
  float factor[MTiles][2], lse[MTiles][2];
};

template <int MTiles>
__device__ __forceinline__ void store_log_sum_exps(const WarpRows<MTiles>& rows, const RowEnds<MTiles>& ends, int lane) {
  constexpr int eights = 2 * MTiles;  // of rows: a lane has a row of every four of them
#pragma unroll
  for (int first = 0; first < eights; first += 4) {
    float lse = 0.f;
#pragma unroll
    for (int i = first; i < first + 4 && i < eights; ++i) {
      const float of_eight = ptx::shuffle(ends.lse[i / 2][i % 2], lane % 8 * 4);
      if (lane / 8 == i % 4) lse = of_eight;
    }
    float* const to = rows.of_lane[first / 4].lse;
    if (to != nullptr) *to = stored_log_sum_exp(rows.final, lse);
  }
}

// Writes one warp's rows by way of its own rows of the query tile; fp32 rows of partial results in two halves, for
// which there is room. Rows that do not exist have any ends.
template <class Config, int MTiles, class Tile>
__device__ __forceinline__ void store_rows(const WarpRows<MTiles>& rows, const Accumulator<MTiles, Config::v_head_dim>& output, const RowEnds<MTiles>& ends, int lane, Tile& tile) {
  constexpr int dim = Config::v_head_dim, blocks = dim / 8;
  lane &= 31;  // see warp_rows
  store_log_sum_exps(rows, ends, lane);
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
