// A tile of 16-bit elements in shared memory: Rows rows of Dim elements.
#pragma once
#include "../ptx/sm80.cuh"

namespace kgen {

// Elements move eight at a time: one chunk is 16 bytes.
constexpr int chunk_elements = 8;
constexpr int chunk_bytes = 16;

// The byte of chunk `chunk` of row `row`. The eight rows that one ldmatrix
// reads lie a whole number of 128-byte lines apart, so un-permuted they would
// meet in the same four banks; the exclusive-or spreads them over all 32.
template <int Dim>
__device__ __forceinline__ int tile_byte(int row, int chunk) {
  return row * (Dim * 2) + ((chunk ^ (row & 7)) * chunk_bytes);
}

// tile_byte(row, chunk + 2 * k) from tile_byte(row, chunk), for an even chunk pair:
// the exclusive-or of the swizzle commutes with that of the step, so one register
// holds a row's address and each step is one instruction. The tile lies at a
// multiple of 256 bytes.
__device__ __forceinline__ uint32_t step_chunks(uint32_t address, int k) { return address ^ (2 * k * chunk_bytes); }

template <int Rows, int Dim>
struct alignas(256) SharedTile {
  unsigned char bytes[Rows * Dim * 2];
};

// The place after and the place before `i` in a ring of Size places.
template <int Size>
__device__ __forceinline__ int after(int i) { return i + 1 == Size ? 0 : i + 1; }
template <int Size>
__device__ __forceinline__ int before(int i) { return i == 0 ? Size - 1 : i - 1; }

}  // namespace kgen
