#pragma once

// Checks that Prepare makes before it binds an op, and one that updates make when they run.

#include <cmath>
#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "kernels/buffer.h"

namespace trainyard::kernels {

struct Operand {
  const char* name;
  const Buffer& buffer;
  DType dtype = DType::kF32;
  bool optional = false;
};

// "bf16"
const char* NameOf(DType type);

// kInvalidArgument: a required operand is missing. kUnimplemented: its type is not the one named.
absl::Status CheckOperands(const char* op, std::initializer_list<Operand> operands);

// kUnimplemented unless `type` is one of elements: f32, bf16, f16.
absl::Status CheckElement(const char* op, DType type);

// kInvalidArgument unless each is at least 1.
absl::Status CheckSizes(const char* op,
                        std::initializer_list<std::pair<const char*, int64_t>> sizes);

// kInvalidArgument unless rows of `cols` elements may begin `step` elements apart.
absl::Status CheckRowStride(const char* op, int64_t step, int64_t cols);

// Whether the step is taken; if not (grad_scale is NaN), an update leaves its results as they are
// (ClipScale).
inline bool IsTaken(const Buffer& grad_scale) {
  return !grad_scale || !std::isnan(*grad_scale.As<float>());
}

}  // namespace trainyard::kernels
