#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// x = 0, n elements of its type.
template <typename T>
struct ZeroOf {
  static constexpr const char* kName = "zero";
  T x;
  int64_t n = 0;
  TY_FIELDS(Write(x, Any), n)
};
using Zero = ZeroOf<Buffer>;

}  // namespace trainyard::kernels
