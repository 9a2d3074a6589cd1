#pragma once

// Checks that Prepare makes before it binds an op.

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

// kInvalidArgument: a required operand is missing. kUnimplemented: its type is not the one named.
absl::Status CheckOperands(const char* op, std::initializer_list<Operand> operands);

// kInvalidArgument unless each is at least 1.
absl::Status CheckSizes(const char* op,
                        std::initializer_list<std::pair<const char*, int64_t>> sizes);

}  // namespace trainyard::kernels
