#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

// x: [batch, time, heads, head_dim]
struct RotaryShape {
  int64_t batch = 1, time = 1, heads = 1, rotated = 1, head_dim = 2;
  double theta = 10000;
};
Vec Rotary(const Vec& x, const RotaryShape& shape, bool inverse);

// x: [rows, 2 * cols]; y: [rows, cols]
Vec SwiGlu(const Vec& x, int64_t rows, int64_t cols);
// dx
Vec SwiGluBackward(const Vec& x, const Vec& dy, int64_t rows, int64_t cols);

}  // namespace trainyard::reference
