#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// x[i] = std * z[first + i] for i in [0, n), z normal with mean 0 and deviation 1; x: [n] f32.
// kernels/normal.h makes numbers 2 p and 2 p + 1 of z from Philox4x32(seed, p, stream), where p and
// stream are two words each, the low word first: the same bits on every device, wherever the range
// begins.
struct DrawNormal {
  static constexpr const char* kName = "draw_normal";
  Buffer x;
  uint64_t seed = 0, stream = 0;
  int64_t first = 0, n = 0;  // first >= 0
  double std = 1;
  TY_FIELDS(Write(x), seed, stream, MayBeZero(first), n, std)
};

}  // namespace trainyard::kernels
