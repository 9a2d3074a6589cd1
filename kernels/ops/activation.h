#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

enum class ActivationKind { kRelu, kGelu, kGeluTanh, kRelu6 };

// y = f(x), n elements of E; y may be x for kRelu and kRelu6.
//   relu: max(x, 0)    relu6: min(max(x, 0), 6)    gelu: x * Phi(x)
//   gelu_tanh: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))   (Hendrycks & Gimpel 2016)
template <typename T>
struct ActivationForwardOf {
  static constexpr const char* kName = "activation";
  ActivationKind kind = ActivationKind::kRelu;
  T x, y;
  int64_t n = 0;
  TY_FIELDS(Read(x, E), Write(y, E), kind, n)
};
using ActivationForward = ActivationForwardOf<Buffer>;

// dx = dy * f'(x), E; dx may be dy. For kRelu and kRelu6 `x` may be the op's output instead of its
// input: both lie strictly inside the bounds in the same places.
template <typename T>
struct ActivationBackwardOf {
  static constexpr const char* kName = "activation_backward";
  ActivationKind kind = ActivationKind::kRelu;
  T x, dy, dx;
  int64_t n = 0;
  TY_FIELDS(Read(x, E), Read(dy, E), Write(dx, E), kind, n)
};
using ActivationBackward = ActivationBackwardOf<Buffer>;

}  // namespace trainyard::kernels
