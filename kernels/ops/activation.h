#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

enum class ActivationKind { kRelu, kGelu, kGeluTanh, kRelu6 };

// y = f(x), n elements of E; y may be x for kRelu and kRelu6.
//   relu: max(x, 0)    relu6: min(max(x, 0), 6)    gelu: x * Phi(x)
//   gelu_tanh: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))   (Hendrycks & Gimpel 2016)
struct ActivationForward {
  ActivationKind kind = ActivationKind::kRelu;
  Buffer x, y;
  int64_t n = 0;
};

// dx = dy * f'(x), E; dx may be dy. For kRelu and kRelu6 `x` may be the output: it lies inside
// where x does.
struct ActivationBackward {
  ActivationKind kind = ActivationKind::kRelu;
  Buffer x, dy, dx;
  int64_t n = 0;
};

}  // namespace trainyard::kernels
