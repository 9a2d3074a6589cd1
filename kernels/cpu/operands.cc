#include "kernels/cpu/operands.h"

#include "absl/strings/str_cat.h"

namespace trainyard::kernels {
const char* NameOf(DType type) {
  switch (type) {
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
  return "unknown";
}

absl::Status CheckOperands(const char* op, std::initializer_list<Operand> operands) {
  for (const Operand& o : operands) {
    if (!o.buffer) {
      if (o.optional) continue;
      return absl::InvalidArgumentError(absl::StrCat(op, ": operand ", o.name, " is missing"));
    }
    if (o.buffer.dtype != o.dtype) {
      return absl::UnimplementedError(absl::StrCat(op, ": operand ", o.name, " is ",
                                                   NameOf(o.buffer.dtype),
                                                   "; the CPU kernel takes ", NameOf(o.dtype)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckElement(const char* op, DType type) {
  if (type == DType::kF32 || type == DType::kBF16 || type == DType::kF16) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(op, ": no CPU kernel for elements of ", NameOf(type)));
}

absl::Status CheckSizes(const char* op,
                        std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  for (const auto& [name, size] : sizes) {
    if (size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": ", name, " is ", size, "; it must be at least 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRowStride(const char* op, int64_t step, int64_t cols) {
  if (step >= cols) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": row_stride is ", step, "; rows have ", cols, " elements"));
}

}  // namespace trainyard::kernels
