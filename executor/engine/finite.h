#pragma once

#include <cmath>
#include <cstdint>

namespace trainyard::engine {

// What n numbers are: the place of the first NaN or infinity, or -1 and the largest magnitude.
struct Extent {
  int64_t first_bad = -1;
  double largest = 0;
};

template <typename T>
Extent ExtentOf(const T* x, int64_t n) {
  T largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return {.first_bad = i};
    largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  }
  return {.largest = static_cast<double>(largest)};
}

}  // namespace trainyard::engine
