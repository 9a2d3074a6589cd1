#include "kernels/check.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace trainyard::kernels {
namespace {

bool IsElement(DType type) {
  return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
}

// E of an op: the type of its first operand that is E; without one, the first other than f32 of
// those that are E or f32.
DType ElementOf(absl::Span<const CheckedField> fields) {
  DType either = DType::kF32;
  for (const CheckedField& field : fields) {
    if (field.buffer == nullptr || !*field.buffer) continue;
    const DType type = field.buffer->dtype;
    if (field.type.elements == OperandType::kE) return type;
    const bool may_be = field.type.elements == OperandType::kEOrF32;
    if (may_be && either == DType::kF32) either = type;
  }
  return either;
}

bool Takes(OperandType::Elements elements, DType element, DType type) {
  switch (elements) {
    case OperandType::kF32:
      return type == DType::kF32;
    case OperandType::kE:
      return IsElement(type) && type == element;
    case OperandType::kEOrF32:
      return type == DType::kF32 || (IsElement(type) && type == element);
    case OperandType::k16Bits:
      return type == DType::kBF16 || type == DType::kF16;
    case OperandType::kF64:
      return type == DType::kF64;
    case OperandType::kI32:
      return type == DType::kI32;
    case OperandType::kU8:
      return type == DType::kU8;
    case OperandType::kAny:
      return true;
  }
  return false;
}

std::string Wanted(OperandType::Elements elements, DType element) {
  switch (elements) {
    case OperandType::kF32:
      return "f32";
    case OperandType::kE:
      return IsElement(element) ? NameOf(element) : "f32, bf16 or f16";
    case OperandType::kEOrF32:
      if (element == DType::kF32 || !IsElement(element)) return "f32";
      return absl::StrCat("f32 or ", NameOf(element));
    case OperandType::k16Bits:
      return "bf16 or f16";
    case OperandType::kF64:
      return "f64";
    case OperandType::kI32:
      return "i32";
    case OperandType::kU8:
      return "u8";
    case OperandType::kAny:
      break;
  }
  return "of any type";
}

// The name in a field of TY_FIELDS: "dlogits" of "WithRowStride(Write(dlogits, Optional(E)))".
absl::string_view NameIn(absl::string_view field) {
  size_t end = 0;
  for (;;) {
    end = 0;
    while (end < field.size() && (absl::ascii_isalnum(field[end]) || field[end] == '_')) ++end;
    if (end == field.size() || field[end] != '(') return field.substr(0, end);
    field.remove_prefix(end + 1);
  }
}

// The fields of a list, which commas outside of parentheses separate.
std::vector<absl::string_view> NamesIn(absl::string_view list) {
  std::vector<absl::string_view> names;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '(') ++depth;
    if (i < list.size() && list[i] == ')') --depth;
    if (i < list.size() && (list[i] != ',' || depth > 0)) continue;
    names.push_back(NameIn(absl::StripAsciiWhitespace(list.substr(begin, i - begin))));
    begin = i + 1;
  }
  return names;
}

absl::Status CheckField(const char* op, absl::string_view name, const CheckedField& field,
                        DType element) {
  if (field.number != nullptr && *field.number < field.least) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": ", name, " is ", *field.number, "; it must be at least ", field.least));
  }
  if (field.buffer == nullptr) return absl::OkStatus();
  if (!*field.buffer) {
    if (field.type.optional) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(op, ": operand ", name, " is missing"));
  }
  if (Takes(field.type.elements, element, field.buffer->dtype)) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(op, ": operand ", name, " is ",
                                               NameOf(field.buffer->dtype), "; the kernel takes ",
                                               Wanted(field.type.elements, element)));
}

}  // namespace

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

absl::Status CheckFields(const char* op, const char* names, absl::Span<const CheckedField> fields) {
  const DType element = ElementOf(fields);
  for (size_t i = 0; i < fields.size(); ++i) {
    if (CheckField(op, "", fields[i], element).ok()) continue;
    return CheckField(op, NamesIn(names).at(i), fields[i], element);
  }
  return absl::OkStatus();
}

}  // namespace trainyard::kernels
