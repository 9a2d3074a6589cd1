#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = x, both [n], unless grad_scale[0] is NaN, which marks a step that is not taken (ClipScale).
template <typename T>
struct CopyIfTakenOf {
  static constexpr const char* kName = "copy_if_taken";
  T x, y;
  T grad_scale;  // [1] f32
  int64_t n = 0;
  TY_FIELDS(Read(x), Update(y), Read(grad_scale), n)
};
using CopyIfTaken = CopyIfTakenOf<Buffer>;

}  // namespace trainyard::kernels
