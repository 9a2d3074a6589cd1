#pragma once

// Converts elements of safetensors files to fp32, exactly: every value of F16 and BF16 is also one
// of fp32.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace trainyard::weights {

// F32, F16, BF16.
bool IsFloatType(absl::string_view dtype);

// Bytes of one element of such a type.
int64_t FloatBytes(absl::string_view dtype);

// IEEE 754 binary16 to binary32, exactly; NaN stays NaN.
float FromF16(uint16_t bits);

// Converts `n` elements of `dtype` (IsFloatType), little-endian, at `from`, which need not be
// aligned. `to` may not overlap `from`.
void ToF32(absl::string_view dtype, const void* from, int64_t n, float* to);

}  // namespace trainyard::weights
