#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Rotary positions (Su et al. 2021). Pairs are those of transformers' llama: an element of the
// first half of a head and the same one of its second half.
//   x, y: [batch, time, heads, head_dim] E, head_dim even; y may be x
//   for i < head_dim / 2, at position t, with a = t * theta^(-2 i / head_dim):
//     y[i] = x[i] cos a - x[i + head_dim / 2] sin a
//     y[i + head_dim / 2] = x[i + head_dim / 2] cos a + x[i] sin a
// The first `rotated` heads turn (queries and keys), the others are copied (values). `inverse`
// turns back, which is also the gradient.
template <typename T>
struct RotaryOf {
  static constexpr const char* kName = "rotary";
  T x, y;
  int64_t batch = 0, time = 0, heads = 0, rotated = 0, head_dim = 0;
  float theta = 10000;
  bool inverse = false;

  const char* Problem() const {
    if (head_dim % 2 != 0) return "head_dim is odd";
    return rotated <= heads ? nullptr : "more heads are rotated than there are";
  }
  TY_FIELDS(Read(x, E), Write(y, E), batch, time, heads, rotated, head_dim, theta, inverse)
};
using Rotary = RotaryOf<Buffer>;

}  // namespace trainyard::kernels
