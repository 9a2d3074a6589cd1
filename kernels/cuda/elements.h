#pragma once

// From a buffer's element type to the kernels that are compiled for it.

#include <cstdlib>

#include "absl/status/statusor.h"
#include "kernels/cuda/require.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// Returns f.operator()<T>() for the element type T that `type` names; aborts if it names none.
template <typename F>
auto WithElement(DType type, const F& f) {
  if (type == DType::kBF16) return f.template operator()<BFloat16>();
  if (type == DType::kF16) return f.template operator()<Float16>();
  if (type != DType::kF32) std::abort();
  return f.template operator()<float>();
}

// The same where `type` may name none: returns kUnimplemented then.
template <typename F>
absl::StatusOr<Kernel> ForElement(const char* op, DType type, const F& prepare) {
  const absl::Status known = RequireElement(op, type);
  if (!known.ok()) return known;
  return WithElement(type, prepare);
}

// An optional operand: null when it is absent.
template <typename T>
T* OptionalAs(const Buffer& buffer) {
  return buffer ? buffer.As<T>() : nullptr;
}

// Element `i` of a buffer.
inline void* ElementAt(const Buffer& buffer, int64_t i) {
  return static_cast<char*>(buffer.data) + i * SizeOf(buffer.dtype);
}

}  // namespace trainyard::kernels::cuda
