#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = a + b, n elements. All are E, and y may be a or b; or b is E and a and y, which may be a, are
// f32.
template <typename T>
struct AddOf {
  static constexpr const char* kName = "add";
  T a, b, y;
  int64_t n = 0;
  TY_FIELDS(Read(a), Read(b), Write(y), n)
};
using Add = AddOf<Buffer>;

}  // namespace trainyard::kernels
