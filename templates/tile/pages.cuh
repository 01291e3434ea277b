// Where a token's K or V lies in the paged cache.
#pragma once
#include "../abi.cuh"
#include "shared_tile.cuh"

namespace kgen {

// The first byte of one KV head's vector of Dim elements for the token in
// place `place` of page `page`.
template <class Config, int Dim>
__device__ __forceinline__ long long page_byte(int page, int place, int kv_head, int kv_heads) {
#if KGEN_HEAD_MAJOR
  const long long vector = (static_cast<long long>(page) * kv_heads + kv_head) * Config::page_size + place;
#else
  const long long vector = (static_cast<long long>(page) * Config::page_size + place) * kv_heads + kv_head;
#endif
  return vector * (Dim * 2);
}

// One KV head of K or V, seen through one run's part of the page table.
template <class Config, int Dim>
struct PagedTokens {
  const unsigned char* cache;
  const int32_t* pages;  // of the run's segment, from its first page
  int kv_head, kv_heads;

  __device__ __forceinline__ const unsigned char* token(int index) const {
    const uint32_t i = index;  // unsigned: a quotient by a power of two is then one shift
    return cache + page_byte<Config, Dim>(pages[i / Config::page_size], i % Config::page_size, kv_head, kv_heads);
  }
};

// How Threads threads share out the cells of a tile of Rows rows x Columns
// columns: visit(row, column) is called for each cell of this thread.
template <int Rows, int Columns, int Threads, class Visit>
__device__ __forceinline__ void for_each_cell(int thread, Visit visit) {
  constexpr uint32_t step = Threads / Columns;
  const uint32_t t = ptx::here(thread);
  static_assert(Threads % Columns == 0 && Rows % step == 0, "the threads must cover whole rows");
#pragma unroll 8  // more addresses at a time than this cost the accumulators their registers
  for (int i = 0; i < int(Rows / step); ++i) visit(int(t / Columns + i * step), int(t % Columns));
}

// Starts copying tokens [begin, begin + Rows) of a run into a shared tile.
// Rows at or past `end` become zeros: a zero weight times a stale NaN would
// still be NaN.
template <class Config, int Dim, int Rows, int Threads>
__device__ __forceinline__ void load_tile(SharedTile<Rows, Dim>& tile, PagedTokens<Config, Dim> tokens, int begin, int end, int thread) {
  const uint32_t base = ptx::shared_address(tile.bytes);
  for_each_cell<Rows, Dim / chunk_elements, Threads>(thread, [&](int row, int chunk) {
    const int index = begin + row;
    const bool valid = index < end;
    // An invalid row's address is not read, but its page index would be.
    const unsigned char* source = tokens.token(valid ? index : end - 1) + chunk * chunk_bytes;
    ptx::cp_async_16(base + tile_byte<Dim>(row, chunk), source, valid);
  });
}

}  // namespace kgen
