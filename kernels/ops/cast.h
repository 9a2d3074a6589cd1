#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = x in another element type, n elements: f32 to bf16 or f16, rounded to nearest with ties to
// even, or bf16 or f16 to f32. Values too large for f16 become infinite. f32 to f32 is allowed and
// copies.
template <typename T>
struct CastOf {
  static constexpr const char* kName = "cast";
  T x, y;
  int64_t n = 0;

  const char* Unsupported() const {
    return x.dtype == DType::kF32 || y.dtype == DType::kF32 ? nullptr : "neither x nor y is f32";
  }
  TY_FIELDS(Read(x, EOrF32), Write(y, EOrF32), n)
};
using Cast = CastOf<Buffer>;

}  // namespace trainyard::kernels
