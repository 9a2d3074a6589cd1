#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y = a + b, n elements; y may be a or b.
struct Add {
  Buffer a, b, y;
  int64_t n = 0;
};

}  // namespace trainyard::kernels
