// materialise, the Block-Attention baseline: segments copied into a sequence's own
// pages, K turned to its position in the sequence, in one launch. One block a
// (copy, KV head).
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

template <class Config>
__device__ __forceinline__ void materialise(const MaterialiseParams& params) {
  using Units = RotationUnits<Config>;
  const Copy copy = pointer<Copy>(params.copies)[ptx::block_x()];
  const int kv_head = ptx::block_y(), thread = ptx::thread_index();
  const int32_t* page_table = pointer<int32_t>(params.page_table);
  const float* rope = pointer<float>(params.rope);

  for (int i = thread; i < copy.count * Units::count; i += Config::threads) {
    const int token = i / Units::count, unit = i % Units::count;
    const int from = copy.src_begin + token, to = copy.dst_begin + token;
    const int a = Units::first_chunk(unit) * chunk_bytes, b = Units::second_chunk(unit) * chunk_bytes;
    const unsigned char* source = pointer<unsigned char>(params.src_k) +
        page_byte<Config, Config::head_dim>(page_table[copy.src_page + from / Config::page_size], from % Config::page_size, kv_head, params.kv_heads);
    unsigned char* target = static_cast<unsigned char*>(params.dst_k) +
        page_byte<Config, Config::head_dim>(page_table[copy.dst_page + to / Config::page_size], to % Config::page_size, kv_head, params.kv_heads);
    uint4 first = ptx::load_16(source + a), second = ptx::load_16(source + b);
#if !KGEN_ENCODING_BAKED
    rotate_unit<Config>(first, second, rope, missing_rotation(copy, from), unit);
#endif
    ptx::store_16(target + a, first);
    ptx::store_16(target + b, second);
  }

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
