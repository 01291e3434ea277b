// append: new tokens' K, rotated as the encoding says, and V into their pages.
// One block a token; its threads share out the KV heads.
#pragma once
#include "../abi.cuh"
#include "../tile/pointer.cuh"
#include "../tile/rotate.cuh"

namespace kgen {

template <class Config>
__device__ __forceinline__ void append(const AppendParams& params) {
  using Units = RotationUnits<Config>;
  ptx::let_next_kernel_start();  // one that attends, and gets ready until K and V are there
  ptx::wait_for_previous_kernel();
  const int token = ptx::block_x(), thread = ptx::thread_index();
  const int slot = pointer<int32_t>(params.slots)[token];
  if (slot < 0) return;
  const int page = slot / Config::page_size, place = slot % Config::page_size;

  const unsigned char* k = pointer<unsigned char>(params.k) + 2ll * token * params.k_token_stride;
  for (int i = thread; i < params.kv_heads * Units::count; i += Config::threads) {
    const int head = i / Units::count, unit = i % Units::count;
    const int a = Units::first_chunk(unit) * chunk_bytes, b = Units::second_chunk(unit) * chunk_bytes;
    const unsigned char* source = k + head * (Config::head_dim * 2);
    uint4 first = ptx::load_16(source + a), second = ptx::load_16(source + b);
#if !KGEN_ENCODING_RAW
    rotate_unit<Config>(first, second, pointer<float>(params.rope), pointer<int32_t>(params.positions)[token], unit);
#endif
    unsigned char* target = static_cast<unsigned char*>(params.k_cache) + page_byte<Config, Config::head_dim>(page, place, head, params.kv_heads);
    ptx::store_16(target + a, first);
    ptx::store_16(target + b, second);
  }

  constexpr int chunks = Config::v_head_dim / chunk_elements;
  const unsigned char* v = pointer<unsigned char>(params.v) + 2ll * token * params.v_token_stride;
  for (int i = thread; i < params.kv_heads * chunks; i += Config::threads) {
    const int head = i / chunks, byte = i % chunks * chunk_bytes;
    unsigned char* target = static_cast<unsigned char*>(params.v_cache) + page_byte<Config, Config::v_head_dim>(page, place, head, params.kv_heads);
    ptx::store_16(target + byte, ptx::load_16(v + head * (Config::v_head_dim * 2) + byte));
  }
}

}  // namespace kgen
