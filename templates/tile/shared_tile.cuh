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

// That of a row `below` further, which takes an instruction or two: of every Aligned rows,
// a power of two, the first is `row`, so that the exclusive-or of one is that of the other
// and of `below`.
template <class Tile, int Aligned>
__device__ __forceinline__ int byte_below(int row, int below, int chunk) {
  if constexpr (Aligned % 8 != 0 && 8 % Aligned != 0) return Tile::byte(row + below, chunk);
  return (Tile::byte(row, chunk) ^ (below % 8 * chunk_bytes)) + Tile::byte(below, below % 8);
}

template <int Rows, int Dim>
struct alignas(256) SharedTile {
  static constexpr int row_bytes = Dim * 2;
  unsigned char bytes[Rows * row_bytes];

  __device__ static __forceinline__ int byte(int row, int chunk) { return tile_byte<Dim>(row, chunk); }
  // The address of chunk + 2 * k from that of chunk, for an even k-step: the
  // exclusive-or of the swizzle commutes with that of the step, so one register
  // holds a row's address and each step is one instruction.
  __device__ static __forceinline__ uint32_t step(uint32_t address, int k) { return address ^ (2 * k * chunk_bytes); }
};

// The same in blocks of eight rows of 64 elements, each as tensor maps with a 128-byte
// swizzle write it: eight rows' blocks one behind the other, then those of the next eight.
// So one box has all elements of its rows.
constexpr int column_elements = 64;

template <int Rows, int Dim>
struct alignas(1024) ColumnTile {
  static_assert(Rows % 8 == 0 && Dim % column_elements == 0, "whole blocks");
  static constexpr int columns = Dim / column_elements;
  static constexpr int column_bytes = 8 * column_elements * 2;      // from a block to the next of its rows
  static constexpr int eight_rows_bytes = columns * column_bytes;  // from a block to that of the next eight rows
  static constexpr int row_bytes = eight_rows_bytes / 8;            // of whole eights
  unsigned char bytes[Rows * row_bytes];

  __device__ static __forceinline__ int byte(int row, int chunk) {
    return row / 8 * eight_rows_bytes + chunk / 8 * column_bytes + tile_byte<column_elements>(row % 8, chunk % 8);
  }
  __device__ static __forceinline__ uint32_t step(uint32_t address, int k) {
    return (address ^ (k % 4 * 2 * chunk_bytes)) + k / 4 * column_bytes;
  }
};

// The place after and the place before `i` in a ring of Size places.
template <int Size>
__device__ __forceinline__ int after(int i) { return i + 1 == Size ? 0 : i + 1; }
template <int Size>
__device__ __forceinline__ int before(int i) { return i == 0 ? Size - 1 : i - 1; }

}  // namespace kgen
