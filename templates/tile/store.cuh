// The results of a tile of rows.
#pragma once
#include "item.cuh"

namespace kgen {

// Where a lane's chunks of a warp's rows go, of so many chunks a row: turn after turn, in turn i that of
// cell lane + 32 i, row by row.
template <class Config, int MTiles, int Chunks>
struct RowPlaces {
  static constexpr int rows = 16 * MTiles, rows_a_turn = 32 / Chunks;
  // Whether all lanes' rows are equally far from those of a turn before: a turn has a whole
  // number of tokens, or a token of turns. The next address is then one addition, which
  // counts: this code runs once an item, and its instructions come from memory.
  static constexpr bool even = ResultRows<Config>::even && 32 % Chunks == 0 && (rows % Config::group == 0 || Config::group % rows == 0) &&
                               (rows_a_turn % Config::group == 0 || Config::group % rows_a_turn == 0);
  const ResultRows<Config>& results;
  int behind, count, first_row, lane, turn = 0;
  unsigned char* to;  // this turn's, where rows are even

  __device__ __forceinline__ RowPlaces(const ResultRows<Config>& results, int behind, int count, int first_row, int lane)
      : results(results), behind(behind), count(count), first_row(first_row), lane(lane), to(even ? find() : nullptr) {}

  // Where turn i's chunk is in a tile.
  template <class Tile>
  __device__ __forceinline__ int staged(int i) const {
    if constexpr (32 % Chunks == 0) return byte_below<Tile, rows_a_turn>(first_row + lane / Chunks, rows_a_turn * i, lane % Chunks);
    return Tile::byte(first_row + (lane + 32 * i) / Chunks, (lane + 32 * i) % Chunks);
  }
  // This turn's row, whether it exists, and if so where its chunk goes.
  __device__ __forceinline__ int row() const { return 32 % Chunks == 0 ? first_row + lane / Chunks + rows_a_turn * turn : first_row + (lane + 32 * turn) / Chunks; }
  __device__ __forceinline__ bool exists() const { return row() < count; }
  __device__ __forceinline__ unsigned char* bytes() const { return even ? to : find(); }
  __device__ __forceinline__ unsigned char* find() const { return results.bytes(row()) + behind + (lane + 32 * turn) % Chunks * chunk_bytes; }
  __device__ __forceinline__ void advance() {
    ++turn;
    if constexpr (even) to += results.bytes_to(rows_a_turn * turn) - results.bytes_to(rows_a_turn * (turn - 1));
  }
};

// Hands each lane's pairs of adjacent outputs, times their row's factor, of the blocks
// of eight columns from first to first + Blocks to stage(row, below, block, x, y), for the row
// `below` behind `row`. The warp's rows, staged in `tile`, then go to so many bytes behind the
// beginnings of their results, 16 bytes a lane and whole lines at a time.
template <class Config, int Blocks, int MTiles, class Tile, class Stage>
__device__ __forceinline__ void store_staged(const ResultRows<Config>& results, int behind, int count, const Accumulator<MTiles, Config::v_head_dim>& output,
                                             const float (&factor)[MTiles][2], int first, int first_row, int lane, const Tile& tile, Stage stage) {
  constexpr int chunks = Config::v_head_dim / chunk_elements;
#pragma unroll
  for (int m = 0; m < MTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
        const float(&pair)[4] = output.block[m][first + n];
        stage(first_row + lane / 4, 16 * m + 8 * h, n, pair[2 * h] * factor[m][h], pair[2 * h + 1] * factor[m][h]);
      }
  ptx::sync_warp();
  constexpr int turns = 16 * MTiles * chunks / 32, at_a_time = turns < 8 ? turns : 8;
  RowPlaces<Config, MTiles, chunks> place(results, behind, count, first_row, lane);
#pragma unroll 1
  for (int first_turn = 0; first_turn < turns; first_turn += at_a_time) {
    uint4 elements[at_a_time];
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      elements[i] = ptx::load_16(tile.bytes + place.template staged<Tile>(first_turn + i));
    }
#pragma unroll
    for (int i = 0; i < at_a_time; ++i, place.advance()) {
      if (place.exists()) ptx::store_16(place.bytes(), elements[i]);
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
__device__ __forceinline__ void store_rows(const AttendParams& params, const Item& item, int kv_head,
                                           const Accumulator<MTiles, Config::v_head_dim>& output, const RowEnds<MTiles>& ends,
                                           int first_row, int lane, Tile& tile) {
  constexpr int dim = Config::v_head_dim, blocks = dim / 8;
  first_row &= 0x7ffffff0, lane &= 31;  // as they are: what the compiler knows of them saves it two hundred instructions
  const ResultRows<Config> results = ResultRows<Config>::of(params, item, kv_head);
  const int count = own_rows<Config>(item);
#pragma unroll
  for (int m = 0; m < MTiles; ++m) {
    const int h = lane % 4, row = first_row + 16 * m + 8 * h + lane / 4;  // of the four lanes that have it two are enough
    if (h < 2 && row < count) store_log_sum_exp(params, item, row_result<Config>(params, item, kv_head, row), h == 0 ? ends.lse[m][0] : ends.lse[m][1]);
  }
  if (is_final(item)) {
    store_staged<Config, blocks>(results, 0, count, output, ends.factor, 0, first_row, lane, tile, [&](int row, int below, int n, float x, float y) {
      *reinterpret_cast<uint32_t*>(tile.bytes + byte_below<Tile, 8>(row, below, n) + 4 * (lane % 4)) = ptx::pack<typename Config::Element>(x, y);
    });
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_staged<Config, blocks / 2>(results, half * (dim / 2) * 4, count, output, ends.factor, half * (blocks / 2), first_row, lane, tile,
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
