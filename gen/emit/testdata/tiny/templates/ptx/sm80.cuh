// Instructions.
#pragma once
#ifndef KGEN_EMULATOR

using int32_t = int;

namespace ptx {
struct bf16 {};
struct fp16 {};
}  // namespace ptx
#endif  // KGEN_EMULATOR
