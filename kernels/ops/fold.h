#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// total += part, n elements, both f32 or both f64: one node of the tree by which the sums of
// logical ranks are added up.
template <typename T>
struct FoldOf {
  static constexpr const char* kName = "fold";
  T part, total;
  int64_t n = 0;

  const char* Unsupported() const {
    const bool known = total.dtype == DType::kF32 || total.dtype == DType::kF64;
    return known && part.dtype == total.dtype ? nullptr
                                              : "part and total are not both f32 or both f64";
  }
  TY_FIELDS(Read(part, Any), Update(total, Any), n)
};
using Fold = FoldOf<Buffer>;

}  // namespace trainyard::kernels
