#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = a + b, n elements. Either all three are E, and y may be a or b; or b is E while a and y are
// f32, and y may be a.
template <typename T>
struct AddOf {
  static constexpr const char* kName = "add";
  T a, b, y;
  int64_t n = 0;

  const char* Unsupported() const {
    return a.dtype == y.dtype ? nullptr : "y is not of the type of a";
  }
  TY_FIELDS(Read(a, EOrF32), Read(b, E), Write(y, EOrF32), n)
};
using Add = AddOf<Buffer>;

}  // namespace trainyard::kernels
