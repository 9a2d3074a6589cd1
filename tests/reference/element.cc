#include "tests/reference/element.h"

#include <cmath>
#include <limits>

namespace trainyard::reference {

using kernels::DType;

namespace {

struct Format {
  int significand;  // bits after the point
  int exponent;     // bits
  int bias() const { return (1 << (exponent - 1)) - 1; }
};

Format FormatOf(DType type) {
  return type == DType::kBF16 ? Format{.significand = 7, .exponent = 8}
                              : Format{.significand = 10, .exponent = 5};
}

}  // namespace

double ToDouble(DType type, uint16_t bits) {
  const Format f = FormatOf(type);
  const double sign = bits >> 15 == 1 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> f.significand;
  const int significand = bits & ((1 << f.significand) - 1);
  if (exponent == (1 << f.exponent) - 1) {
    return significand == 0 ? sign * std::numeric_limits<double>::infinity()
                            : std::numeric_limits<double>::quiet_NaN();
  }
  const int whole = exponent == 0 ? significand : significand + (1 << f.significand);
  return sign * std::ldexp(whole, (exponent == 0 ? 1 : exponent) - f.bias() - f.significand);
}

uint16_t ToBits(DType type, double x) {
  const Format f = FormatOf(type);
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const int top = ((1 << f.exponent) - 1) << f.significand;
  if (std::isnan(x)) return static_cast<uint16_t>(sign | top | 1 << (f.significand - 1));
  if (x == 0) return sign;
  if (std::isinf(x)) return static_cast<uint16_t>(sign | top);
  // Steps of the numbers around x; below the smallest normal they stay the same.
  const int exponent = std::max(std::ilogb(x), 1 - f.bias());
  const double steps = std::nearbyint(std::ldexp(std::fabs(x), f.significand - exponent));
  // A significand that rounds up to the next power of two carries into the exponent.
  const double bits = std::ldexp(exponent + f.bias() - 1, f.significand) + steps;
  return static_cast<uint16_t>(sign | static_cast<int>(std::fmin(bits, top)));
}

double Rounded(DType type, double x) {
  return type == DType::kF32 ? static_cast<double>(static_cast<float>(x))
                             : ToDouble(type, ToBits(type, x));
}

double UnitRoundoff(DType type) {
  return type == DType::kF32 ? 0x1p-24 : std::ldexp(1.0, -1 - FormatOf(type).significand);
}

}  // namespace trainyard::reference
