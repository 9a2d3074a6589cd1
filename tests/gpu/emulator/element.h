#pragma once

// Elements of the types that the emulated libraries take, by the toolkit's own conversions.

#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"
// The toolkit's, after the language's words have a meaning.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace trainyard::emulator {

enum class Element { kF32, kBF16, kF16 };

inline size_t SizeOf(Element type) { return type == Element::kF32 ? 4 : 2; }

inline float Get(Element type, const void* data, int64_t i) {
  if (type == Element::kF32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == Element::kBF16 ? __bfloat162float(__ushort_as_bfloat16(bits))
                                : __half2float(__ushort_as_half(bits));
}

inline void Put(Element type, void* data, int64_t i, float x) {
  if (type == Element::kF32) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<uint16_t*>(data)[i] = type == Element::kBF16
                                          ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                                          : __half_as_ushort(__float2half_rn(x));
  }
}

}  // namespace trainyard::emulator
