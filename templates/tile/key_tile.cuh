// The order in which a work item's keys are visited.
#pragma once
#include "../abi.cuh"
#include "pointer.cuh"

namespace kgen {

// A tile of keys: the tokens from `begin` on, of those of its run before `end`.
struct KeyTile {
  int run;  // -1: there is no tile
  int begin, end;
  int page, offset, causal;  // of the run, see Run

  __device__ __forceinline__ bool exists() const { return run >= 0; }
};

// The first tile of the first of the runs [run, run_end) that holds a token.
__device__ __forceinline__ KeyTile first_tile(const AttendParams& params, int run, int run_end) {
  for (; run < run_end; ++run) {
    const Run& r = pointer<Run>(params.runs)[run];
    if (r.begin < r.end) return {run, r.begin, r.end, r.page, r.offset, r.causal};
  }
  return {-1, 0, 0, 0, 0, 0};
}

// The tile of Keys tokens that follows, of the runs before run_end; a tile never
// spans two runs.
template <int Keys>
__device__ __forceinline__ KeyTile tile_after(const AttendParams& params, KeyTile tile, int run_end) {
  if (!tile.exists()) return tile;
  tile.begin += Keys;
  return tile.begin < tile.end ? tile : first_tile(params, tile.run + 1, run_end);
}

}  // namespace kgen
