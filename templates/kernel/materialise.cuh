// materialise, the Block-Attention baseline: segments copied into a sequence's own
// pages, K turned to its position in the sequence, in one launch. One block a
// (copy, KV head). Or K alone, ahead of a kernel that reads it rotated.
#pragma once
#include "../abi.cuh"
#include "../tile/pointer.cuh"
#include "../tile/rotate.cuh"

namespace kgen {

#if !KGEN_ENCODING_BAKED
// The angle that the stored K of token `index` still lacks.
__device__ __forceinline__ int missing_rotation(const Copy& copy, int index) {
#if KGEN_ENCODING_RAW
  return copy.offset + index;
#else
  return copy.offset;
#endif
}
#endif

// Copies K of the tokens [begin, end) of a copy. A rotation's angles cost more to read than K; so a
// thread rotates several heads of a token by the same ones.
template <class Config>
__device__ __forceinline__ void copy_keys(const MaterialiseParams& params, const Copy& copy, int begin, int end) {
  using Units = RotationUnits<Config>;
  const int32_t* page_table = pointer<int32_t>(params.page_table);
  const int cells = (end - begin) * Units::count;  // parts of a head's K
  if (cells == 0) return;
  const int threads_a_cell = Config::threads < 2 * cells ? 1 : Config::threads / cells;
  for (int i = ptx::thread_index(); i < cells * threads_a_cell; i += Config::threads) {
    const int unit = i % cells % Units::count, token = begin + i % cells / Units::count;
    const int from = copy.src_begin + token, to = copy.dst_begin + token, to_page = copy.dst_page + to / Config::page_size;
    const int source_page = page_table[copy.src_page + from / Config::page_size], target_page = params.dst_v != nullptr ? page_table[to_page] : to_page;
    const int a = Units::first_chunk(unit) * chunk_bytes, b = Units::second_chunk(unit) * chunk_bytes;
#if !KGEN_ENCODING_BAKED
#if KGEN_ROPE
    const Angles angles = angles_at<Config>(pointer<float>(params.rope), missing_rotation(copy, from), unit < Units::rotated ? unit * chunk_elements : 0, 1.f);
#endif
#endif
#pragma unroll 2
    for (int head = i / cells; head < params.kv_heads; head += threads_a_cell) {
      const unsigned char* source = pointer<unsigned char>(params.src_k) +
          page_byte<Config, Config::head_dim>(source_page, from % Config::page_size, head, params.kv_heads);
      unsigned char* target = static_cast<unsigned char*>(params.dst_k) +
          page_byte<Config, Config::head_dim>(target_page, to % Config::page_size, head, params.kv_heads);
      uint4 first = ptx::load_16(source + a), second = ptx::load_16(source + b);
#if !KGEN_ENCODING_BAKED
#if KGEN_ROPE
      if (unit < Units::rotated) rotate_chunks<Config>(first, second, angles);
#endif
#endif
      ptx::store_16(target + a, first);
      ptx::store_16(target + b, second);
    }
  }
}

template <class Config>
__device__ __forceinline__ void materialise(const MaterialiseParams& params) {
  ptx::let_next_kernel_start();  // one that reads rotated keys, and gets ready until they are there
  ptx::wait_for_previous_kernel();
  const Copy copy = pointer<Copy>(params.copies)[ptx::block_x()];
  const int kv_head = ptx::block_y(), thread = ptx::thread_index();
  // All heads of a part of the tokens, one of a head for each block.
  copy_keys<Config>(params, copy, copy.count * kv_head / params.kv_heads, copy.count * (kv_head + 1) / params.kv_heads);
  if (params.dst_v == nullptr) return;

  const int32_t* page_table = pointer<int32_t>(params.page_table);
  constexpr int chunks = Config::v_head_dim / chunk_elements;
  for (int i = thread; i < copy.count * chunks; i += Config::threads) {
    const int token = i / chunks, byte = i % chunks * chunk_bytes;
    const int from = copy.src_begin + token, to = copy.dst_begin + token;
    const unsigned char* source = pointer<unsigned char>(params.src_v) +
        page_byte<Config, Config::v_head_dim>(page_table[copy.src_page + from / Config::page_size], from % Config::page_size, kv_head, params.kv_heads);
    unsigned char* target = static_cast<unsigned char*>(params.dst_v) +
        page_byte<Config, Config::v_head_dim>(page_table[copy.dst_page + to / Config::page_size], to % Config::page_size, kv_head, params.kv_heads);
    ptx::store_16(target + byte, ptx::load_16(source + byte));
  }
}

}  // namespace kgen
