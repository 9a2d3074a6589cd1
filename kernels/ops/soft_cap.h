#pragma once

#include <cmath>

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = cap tanh(x / cap): small values stay as they are, large ones approach +-cap (Bello et al.
// 2016, section 6.2; Gemma Team 2024, Gemma 2, section 2). x, y: [n] E; y may be x.
template <typename T>
struct SoftCapForwardOf {
  static constexpr const char* kName = "soft_cap";
  T x, y;
  int64_t n = 0;
  float cap = 1;

  const char* Problem() const { return IsSoftCap(cap) ? nullptr : "cap is not a positive number"; }
  TY_FIELDS(Read(x, E), Write(y, E), n, cap)

  static bool IsSoftCap(float cap) { return cap > 0 && std::isfinite(cap); }
};
using SoftCapForward = SoftCapForwardOf<Buffer>;

// dx = dy (1 - (y / cap)^2), from what the forward op wrote, so that x need not be kept. y, dy, dx:
// [n] E; dx may be dy.
template <typename T>
struct SoftCapBackwardOf {
  static constexpr const char* kName = "soft_cap_backward";
  T y, dy, dx;
  int64_t n = 0;
  float cap = 1;

  const char* Problem() const {
    return SoftCapForwardOf<T>::IsSoftCap(cap) ? nullptr : "cap is not a positive number";
  }
  TY_FIELDS(Read(y, E), Read(dy, E), Write(dx, E), n, cap)
};
using SoftCapBackward = SoftCapBackwardOf<Buffer>;

}  // namespace trainyard::kernels
