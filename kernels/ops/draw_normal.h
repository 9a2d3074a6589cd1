#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// x[i] = std * z[first + i] for i in [0, n), z normal with mean 0 and deviation 1; x: [n] f32.
// Numbers 2 p and 2 p + 1 of z come from Philox4x32(seed, p, stream), the first words of both
// first, by kernels/normal.h: the same bits on every device, wherever the range begins.
struct DrawNormal {
  Buffer x;
  uint64_t seed = 0, stream = 0;
  int64_t first = 0, n = 0;  // first >= 0
  double std = 1;
};

}  // namespace trainyard::kernels
