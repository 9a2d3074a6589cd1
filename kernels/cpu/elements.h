#pragma once

// From a buffer's element type to the loops and the code that are written for it.

#include "absl/status/statusor.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"

namespace trainyard::kernels {

template <typename T>
const ElementLoops<T>& LoopsOf(const VectorTable& table);
template <>
inline const ElementLoops<float>& LoopsOf<float>(const VectorTable& table) {
  return table.f32;
}
template <>
inline const ElementLoops<BFloat16>& LoopsOf<BFloat16>(const VectorTable& table) {
  return table.bf16;
}
template <>
inline const ElementLoops<Float16>& LoopsOf<Float16>(const VectorTable& table) {
  return table.f16;
}

// Returns prepare.operator()<T>() for the element type T that `type` names. kUnimplemented when it
// names none.
template <typename F>
absl::StatusOr<Kernel> ForElement(const char* op, DType type, const F& prepare) {
  switch (type) {
    case DType::kF32:
      return prepare.template operator()<float>();
    case DType::kBF16:
      return prepare.template operator()<BFloat16>();
    case DType::kF16:
      return prepare.template operator()<Float16>();
    default:
      return CheckElement(op, type);
  }
}

// An optional operand: null when it is absent.
template <typename T>
T* OptionalAs(const Buffer& buffer) {
  return buffer ? buffer.As<T>() : nullptr;
}

}  // namespace trainyard::kernels
