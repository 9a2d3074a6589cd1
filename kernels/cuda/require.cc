#include "kernels/cuda/require.h"

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {
namespace {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "an unknown type";
}

}  // namespace

absl::Status RequireTypes(const char* op, std::initializer_list<Operand> operands) {
  for (const Operand& o : operands) {
    if (!o.buffer) {
      if (o.optional) continue;
      return absl::InvalidArgumentError(absl::StrCat(op, ": operand ", o.name, " is missing"));
    }
    if (o.buffer.dtype != o.dtype) {
      return absl::UnimplementedError(absl::StrCat("cuda ", op, ": operand ", o.name, " is ",
                                                   Name(o.buffer.dtype), ", the kernel takes ",
                                                   Name(o.dtype)));
    }
  }
  return absl::OkStatus();
}

absl::Status RequireElement(const char* op, DType type) {
  if (type == DType::kF32 || type == DType::kBF16 || type == DType::kF16) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("cuda ", op, ": no kernel for elements of ", Name(type)));
}

absl::Status RequirePositive(const char* op, std::initializer_list<Extent> extents) {
  for (const Extent& e : extents) {
    if (e.value <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": ", e.name, " is ", e.value, ", expected at least 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status RequireRowStride(const char* op, int64_t step, int64_t cols) {
  if (step >= cols) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": row_stride is ", step, "; rows have ", cols, " elements"));
}

}  // namespace trainyard::kernels::cuda
