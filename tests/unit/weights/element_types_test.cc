#include "executor/weights/element_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace trainyard::weights {
namespace {

TEST(ElementTypes, EveryF16IsTheSameNumber) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int fraction = static_cast<int>(bits & 1023);
    double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) magnitude = fraction == 0 ? INFINITY : NAN;
    const float found = FromF16(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::signbit(found), bits >= 32768) << bits;
    if (std::isnan(magnitude)) {
      EXPECT_TRUE(std::isnan(found)) << bits;
    } else {
      EXPECT_EQ(std::fabs(found), magnitude) << bits;
    }
  }
}

TEST(ElementTypes, Bf16IsTheUpperHalfAndNeedNotBeAligned) {
  const char bytes[] = {0, 0x40, 0x49, static_cast<char>(0x80), static_cast<char>(0xBF)};
  float out[2];
  ToF32("BF16", bytes + 1, 2, out);
  EXPECT_EQ(out[0], std::bit_cast<float>(0x49400000u));
  EXPECT_EQ(out[1], -1.0f);
}

TEST(ElementTypes, OnlyFloatsAreWeights) {
  for (const char* dtype : {"F32", "F16", "BF16"}) EXPECT_TRUE(IsFloatType(dtype)) << dtype;
  for (const char* dtype : {"F64", "I64", "U8", "F8_E4M3", ""})
    EXPECT_FALSE(IsFloatType(dtype)) << dtype;
}

}  // namespace
}  // namespace trainyard::weights
