#pragma once

// What the CUDA kernels ask of an op before they take it.

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "kernels/buffer.h"

namespace trainyard::kernels::cuda {

struct Operand {
  const char* name;
  const Buffer& buffer;
  DType dtype = DType::kF32;
  bool optional = false;
};

struct Extent {
  const char* name;
  int64_t value;
};

// kInvalidArgument: an operand that is not optional is absent. kUnimplemented: an element type for
// which there is no kernel.
absl::Status RequireTypes(const char* op, std::initializer_list<Operand> operands);

// kUnimplemented unless `type` is one of elements: f32, bf16, f16.
absl::Status RequireElement(const char* op, DType type);

// kInvalidArgument when an extent is not positive.
absl::Status RequirePositive(const char* op, std::initializer_list<Extent> extents);

// kInvalidArgument unless rows of `cols` elements may begin `step` elements apart.
absl::Status RequireRowStride(const char* op, int64_t step, int64_t cols);

}  // namespace trainyard::kernels::cuda
