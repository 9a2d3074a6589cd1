#pragma once

#include <cmath>

namespace trainyard::reference {

inline double SoftCap(double x, double cap) { return cap * std::tanh(x / cap); }

// By x, though the op is given y.
inline double SoftCapSlope(double x, double cap) {
  const double cosh = std::cosh(x / cap);
  return 1 / (cosh * cosh);
}

}  // namespace trainyard::reference
