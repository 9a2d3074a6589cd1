#pragma once

// From a buffer's element type to the code that is written for it.

#include <cstdlib>

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Returns f.operator()<T>() for the element type T (E of buffer.h) that `type` names; aborts if it
// names none.
template <typename F>
auto ForElement(DType type, const F& f) {
  if (type == DType::kBF16) return f.template operator()<BFloat16>();
  if (type == DType::kF16) return f.template operator()<Float16>();
  if (type != DType::kF32) std::abort();
  return f.template operator()<float>();
}

// An optional operand from `element` on: null when it is absent.
template <typename T>
T* OptionalAs(const Buffer& buffer, int64_t element = 0) {
  return buffer ? buffer.As<T>() + element : nullptr;
}

}  // namespace trainyard::kernels
