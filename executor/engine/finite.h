#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/element.h"

namespace trainyard::engine {

inline float ValueOf(float x) { return x; }
inline double ValueOf(double x) { return x; }
inline float ValueOf(kernels::BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float ValueOf(kernels::Float16 x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  const float magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(1024.0f + fraction, exponent - 25);
  return x.bits >> 15 != 0 ? -magnitude : magnitude;
}

// What is found in n numbers: the place of the first NaN or infinity, or -1 and the largest
// magnitude.
struct Extent {
  int64_t first_bad = -1;
  double largest = 0;
};

template <typename T>
Extent ExtentOf(const T* x, int64_t n) {
  decltype(ValueOf(*x)) largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto magnitude = std::fabs(ValueOf(x[i]));
    if (!std::isfinite(magnitude)) return {.first_bad = i};
    largest = magnitude > largest ? magnitude : largest;
  }
  return {.largest = static_cast<double>(largest)};
}

}  // namespace trainyard::engine
