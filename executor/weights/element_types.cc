#include "executor/weights/element_types.h"

#include <bit>
#include <cstring>

#include "storage/base/status.h"

namespace trainyard::weights {

bool IsFloatType(absl::string_view dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

int64_t FloatBytes(absl::string_view dtype) { return dtype == "F32" ? 4 : 2; }

float FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1F;
  const uint32_t significand = bits & 0x3FF;
  if (exponent == 0) {  // a multiple of 2^-24
    const float magnitude = static_cast<float>(significand) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wider = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wider << 23 | significand << 13);
}

void ToF32(absl::string_view dtype, const void* from, int64_t n, float* to) {
  TY_CHECK(IsFloatType(dtype), dtype);
  if (dtype == "F32") {
    memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const bool f16 = dtype == "F16";
  const char* at = static_cast<const char*>(from);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    memcpy(&bits, at + 2 * i, sizeof(bits));
    to[i] = f16 ? FromF16(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

}  // namespace trainyard::weights
