#pragma once

// What every back end checks of an op before it prepares it, by the op's declaration (operand.h).

#include <array>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/operand.h"

namespace trainyard::kernels {

// "bf16"
const char* NameOf(DType type);

// What is checked of a field: an operand, or a whole number that is at least `least`.
struct CheckedField {
  const Buffer* buffer = nullptr;
  OperandType type;
  const int64_t* number = nullptr;
  int64_t least = 0;
};

// `names` is TY_FIELDS' list of the fields, in the same order.
absl::Status CheckFields(const char* op, const char* names, absl::Span<const CheckedField> fields);

// A list of tables is checked by its first.
template <typename Field>
CheckedField CheckedOf(const Field& field) {
  if constexpr (kIsTouched<Field>) {
    if constexpr (requires { field.at.first; }) {
      return {.buffer = &field.at.first, .type = field.type};
    } else {
      return {.buffer = &field.at, .type = field.type};
    }
  } else if constexpr (kIsNatural<Field>) {
    return {.number = &field.value, .least = 0};
  } else if constexpr (std::is_same_v<Field, int64_t>) {
    return {.number = &field, .least = 1};
  } else {
    return {};
  }
}

// kInvalidArgument: an operand is missing, a size is not positive, or op.Problem(). kUnimplemented:
// the type of an operand is none that the op takes, or op.Unsupported().
template <typename Op>
absl::Status CheckOp(const Op& op) {
  const auto fields = op.Fields();
  const auto checked = std::apply(
      [](const auto&... field) {
        return std::array<CheckedField, sizeof...(field)>{CheckedOf(field)...};
      },
      fields);
  if (absl::Status ok = CheckFields(Op::kName, Op::kFieldList, checked); !ok.ok()) return ok;
  if constexpr (requires { op.Problem(); }) {
    if (const char* const problem = op.Problem(); problem != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(Op::kName, ": ", problem));
    }
  }
  if constexpr (requires { op.Unsupported(); }) {
    if (const char* const types = op.Unsupported(); types != nullptr) {
      return absl::UnimplementedError(absl::StrCat(Op::kName, ": ", types));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::kernels
