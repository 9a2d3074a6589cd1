#include "tests/reference/resample.h"

#include <algorithm>
#include <cmath>

namespace trainyard::reference {

namespace {

// Of source pixel s for target pixel i, before the weights are divided by their sum.
double Weight(const ResampleAxis& axis, int64_t i, int64_t s) {
  const double scale = (axis.end - axis.begin) / static_cast<double>(axis.out);
  const double support = std::max(1.0, scale);
  const double centre = axis.begin + (static_cast<double>(i) + 0.5) * scale;
  return std::max(0.0, 1 - std::abs(static_cast<double>(s) + 0.5 - centre) / support);
}

}  // namespace

std::vector<double> Resample(const std::vector<uint8_t>& pixels, int64_t width, int64_t channels,
                             const ResampleAxis& x, const ResampleAxis& y) {
  std::vector<double> out;
  for (int64_t i = 0; i < y.out; ++i) {
    for (int64_t j = 0; j < x.out; ++j) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0, weights = 0;
        for (int64_t row = y.low; row < y.high; ++row) {
          const double vertical = Weight(y, i, row);
          if (vertical == 0) continue;
          for (int64_t column = x.low; column < x.high; ++column) {
            const double weight = vertical * Weight(x, j, column);
            weights += weight;
            sum += weight * pixels[(row * width + column) * channels + c];
          }
        }
        out.push_back(sum / weights);
      }
    }
  }
  return out;
}

}  // namespace trainyard::reference
