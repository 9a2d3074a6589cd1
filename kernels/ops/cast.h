#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y = x in another element type, n elements: f32 to bf16 or f16, rounded to nearest with ties to
// even, or back. Of f16 what is too large becomes infinite. Of f32 alone also in the same: a copy.
struct Cast {
  Buffer x, y;
  int64_t n = 0;
};

}  // namespace trainyard::kernels
