#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y = x, both [n], unless grad_scale[0] is NaN: the step is not taken then (ClipScale).
struct CopyIfTaken {
  Buffer x, y;
  Buffer grad_scale;  // [1] f32
  int64_t n = 0;
};

}  // namespace trainyard::kernels
