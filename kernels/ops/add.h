#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y = a + b, n elements. All are E, and y may be a or b; or b is E and a and y, which may be a, are
// f32.
struct Add {
  Buffer a, b, y;
  int64_t n = 0;
};

}  // namespace trainyard::kernels
