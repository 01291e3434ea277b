// The cuts of one tile of rows, merged by the blocks of a cluster (sm90): partial results
// go from shared memory to shared memory, and no merge follows.
#pragma once
#include "../ptx/sm90.cuh"
#include "item.cuh"
#include "shared_tile.cuh"

namespace kgen {

// What the exchange takes besides a query tile. Each warp of consumers exchanges its own
// 16 rows with the warps of the same place in the peers, and waits for no other.
//
// Peers are Item.peers blocks, 2, 4 or 8, from a rank that is a multiple of that on. Of
// each warp's rows a peer owns 16 / peers. For each half of the columns:
//
//   1. A warp whose rows of the query tile nobody reads any more arrives at `room` of
//      every peer, itself among them, having said in which of its two query tiles they are.
//   2. When all of them have arrived, it sends each peer's rows of its outputs there, and
//      with the first half their maxima and sums; these count towards that one's `full`.
//   3. When all has come that its own `full` expects, it adds it up in the order of ranks,
//      and stores the rows that it owns. By that, its rows of the query tile are free again.
//
// Phases. A merge is two phases of `full` and of one `room`, so each begins at parity 0.
// A count of peers has a `room` of its own, at which these blocks alone arrive: a block
// that is ahead, in an item with other peers, must not be counted here. One that is ahead
// in an item with the same peers is not: it has ended the merge before, for which this
// warp sent it the second half, having waited for both phases of `room`. Nor can what it
// sends be counted in an earlier phase of `full`: it waits for this warp's arrival at
// its `room` first. What it says of its query tile lies in a cell of its own, which this
// warp reads before it arrives for the second half. And no lane is still waiting for a
// phase when its warp arrives for the next: sync_warp is between.
//
// No deadlock. Nothing waits for a peer but the ends of items, and each of these waits
// for its own peers' ends of the same group. All blocks of a cluster meet groups in the
// same order, one that has no peers or no item there goes past. To get to the end of an
// item a warp waits, besides, for what its own block does in this item and before: never
// for the end of another warp's merge in it (the turns of the warpgroups are passed on
// before). So of all warps that wait for peers, none waits for one in a later group.
//
// Nor must a block stay until its peers have ended: whatever they write to it or arrive at
// in it, it waits for.
template <class Config>
struct PeerShared {
  static constexpr int warps = Config::rows / 16, counts = Config::cluster == 8 ? 3 : Config::cluster == 4 ? 2 : 1;

  struct alignas(16) Cell { uint4 content; };
  Cell tile[warps][Config::cluster];  // x: in which query tile the rank's warp has its rows
  Cell sums[warps][8];                // maximum and sum of two rows that are owned
  alignas(8) unsigned long long room[counts][warps];  // for 2, 4, 8 peers
  unsigned long long full[warps];

  __device__ __forceinline__ void init() {
    for (int warp = 0; warp < warps; ++warp) {
      for (int i = 0; i < counts; ++i) ptx::barrier_init(ptx::shared_address(&room[i][warp]), 2 << i);
      ptx::barrier_init(ptx::shared_address(&full[warp]), 1);
    }
  }
};

// Merges a warp's rows with those of its peers, and stores those that it owns. The
// queries are in `tile`; nobody else uses the warp's rows of it.
template <class Config>
__device__ __forceinline__ void merge_with_peers(const AttendParams& params, const Item& item, int kv_head, PeerShared<Config>& peers,
                                                 const Accumulator<1, Config::v_head_dim>& output, const Softmax<1>& softmax, float scale_log2,
                                                 int first_row, int lane, int tile, ColumnTile<Config::rows, Config::head_dim>* tiles) {
  if (first_row >= item.q_count * Config::group) return;  // no rows, nor have the peers' warps of this place
  using Tile = ColumnTile<Config::rows, Config::head_dim>;
  constexpr int dim = Config::v_head_dim, blocks = dim / 16, chunks = dim / 8;  // of half a row: of 8 columns, and of 4
  const int warp = first_row / 16, count = item.peers, rows = 16 / count, level = count == 2 ? 0 : count == 4 ? 1 : 2;
  const int rank = ptx::cluster_rank(), first = rank & -count;
  const uint32_t room = ptx::shared_address(&peers.room[level][warp]), full = ptx::shared_address(&peers.full[warp]);
  uint32_t to[2], arrived[2];  // of the owners of the lane's two rows: the query tile, `full`

  auto give_room = [&](int half) {
    ptx::sync_warp();
    if (lane == 0) ptx::barrier_arrive_expecting(full, 16 * dim * 2 + (half == 0 ? 16 * 8 : 0));
    if (lane < count) ptx::peer_barrier_arrive(ptx::peer_address(room, first + lane));
  };
  if (lane < count) {
    ptx::peer_store_16(ptx::peer_address(ptx::shared_address(&peers.tile[warp][rank]), first + lane), make_uint4(tile, 0, 0, 0));
  }
  give_room(0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ptx::barrier_wait_cluster(room, half);
    ptx::sync_warp();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 8 * h + lane / 4, owner = first + row / rows, place = (rank - first) * rows + row % rows;
      if (half == 0) {
        to[h] = ptx::peer_address(ptx::shared_address(tiles[ptx::load_16(&peers.tile[warp][owner]).x].bytes), owner);
        arrived[h] = ptx::peer_address(full, owner);
        const float next_maximum = ptx::shuffle_xor(softmax.maximum[0][h], 4), next_sum = ptx::shuffle_xor(softmax.sum[0][h], 4);
        if (lane % 8 == 0) {
          ptx::peer_store_async_16(ptx::peer_address(ptx::shared_address(&peers.sums[warp][place / 2]), owner),
                                   make_uint4(__float_as_uint(softmax.maximum[0][h]), __float_as_uint(softmax.sum[0][h]),
                                              __float_as_uint(next_maximum), __float_as_uint(next_sum)),
                                   arrived[h]);
        }
      }
#pragma unroll
      for (int n = 0; n < blocks; n += 2) {
        // Two lanes have two adjacent columns each of both blocks: one takes the four
        // columns of the first, the other those of the second.
        const float(&left)[4] = output.block[0][half * blocks + n], (&right)[4] = output.block[0][half * blocks + n + 1];
        const bool second = lane % 2 == 1;
        const float x = ptx::shuffle_xor(second ? left[2 * h] : right[2 * h], 1), y = ptx::shuffle_xor(second ? left[2 * h + 1] : right[2 * h + 1], 1);
        const uint4 four = second ? make_uint4(__float_as_uint(x), __float_as_uint(y), __float_as_uint(right[2 * h]), __float_as_uint(right[2 * h + 1]))
                                  : make_uint4(__float_as_uint(left[2 * h]), __float_as_uint(left[2 * h + 1]), __float_as_uint(x), __float_as_uint(y));
        ptx::peer_store_async_16(to[h] + Tile::byte(first_row + place, 2 * n + 2 * (lane % 2) + lane % 4 / 2), four, arrived[h]);
      }
    }
    ptx::barrier_wait_cluster(full, half);

    // Four columns of a row at a time; a lane that has none left does the last again.
    constexpr int most = chunks / 4;  // with two peers
    uint2 merged[most] = {};
    auto owned_row = [&](int i) { return min((lane + 32 * i) / chunks, rows - 1); };
    auto result_of = [&](int i) { return row_result<Config>(params, item, kv_head, first_row + (rank - first) * rows + owned_row(i)); };
    auto exists = [&](int i) { return 32 * i < rows * chunks && first_row + (rank - first) * rows + owned_row(i) < item.q_count * Config::group; };
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (32 * i >= rows * chunks) break;
      const int r = owned_row(i), chunk = lane % chunks;
      auto sums_of = [&](int peer) {
        const int place = peer * rows + r;
        const uint4 two = ptx::load_16(&peers.sums[warp][place / 2]);
        return place % 2 == 0 ? make_float2(__uint_as_float(two.x), __uint_as_float(two.y)) : make_float2(__uint_as_float(two.z), __uint_as_float(two.w));
      };
      float maximum = -ptx::infinity();
#pragma unroll 2
      for (int peer = 0; peer < count; ++peer) maximum = ptx::maximum(maximum, sums_of(peer).x);
      const float shift = maximum == -ptx::infinity() ? 0.f : maximum * scale_log2;
      float sum = 0.f, x[4] = {};
#pragma unroll 2
      for (int peer = 0; peer < count; ++peer) {
        const float2 of_peer = sums_of(peer);
        const float weight = ptx::exp2_approx(ptx::multiply_add(of_peer.x, scale_log2, -shift));
        const uint4 part = ptx::load_16(tiles[tile].bytes + Tile::byte(first_row + peer * rows + r, chunk));
        sum = ptx::multiply_add(of_peer.y, weight, sum);
        x[0] = ptx::multiply_add(__uint_as_float(part.x), weight, x[0]);
        x[1] = ptx::multiply_add(__uint_as_float(part.y), weight, x[1]);
        x[2] = ptx::multiply_add(__uint_as_float(part.z), weight, x[2]);
        x[3] = ptx::multiply_add(__uint_as_float(part.w), weight, x[3]);
      }
      const RowResult result = result_of(i);
      const float factor = row_normaliser<Config>(params, item, result, maximum, sum, scale_log2);
      if (half == 1 && chunk == 0 && exists(i)) store_log_sum_exp(params, item, result, log_sum_exp2(maximum, sum, scale_log2));
      merged[i] = make_uint2(ptx::pack<typename Config::Element>(x[0] * factor, x[1] * factor), ptx::pack<typename Config::Element>(x[2] * factor, x[3] * factor));
    }
    if (half == 0) give_room(1);  // before the stores: the arrival would wait for them
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (exists(i)) *reinterpret_cast<uint2*>(output_row<Config>(params, result_of(i)) + half * dim + lane % chunks * 8) = merged[i];
    }
  }
}

}  // namespace kgen
