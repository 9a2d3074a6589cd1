#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// x = 0, n elements of its type.
struct Zero {
  Buffer x;
  int64_t n = 0;
};

}  // namespace trainyard::kernels
