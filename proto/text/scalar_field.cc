#include "proto/text/scalar_field.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"

namespace trainyard::text {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

absl::Status Invalid(absl::string_view message) { return absl::InvalidArgumentError(message); }

// At most 60 characters of what was found: a message stays one line whatever the file holds.
std::string Quoted(absl::string_view text) {
  constexpr size_t kLimit = 60;
  return absl::StrCat("'", text.substr(0, kLimit), text.size() > kLimit ? "…" : "", "'");
}

std::vector<std::string> ValueNames(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    const std::string& name = type.value(i)->name();
    if (!absl::EndsWith(name, "_UNSPECIFIED")) names.push_back(name);
  }
  return names;
}

absl::StatusOr<const EnumValueDescriptor*> ParseEnum(const EnumDescriptor& type,
                                                     const std::string& text) {
  for (int i = 0; i < type.value_count(); ++i) {
    const EnumValueDescriptor* value = type.value(i);
    if (absl::EqualsIgnoreCase(value->name(), text) &&
        !absl::EndsWith(value->name(), "_UNSPECIFIED")) {
      return value;
    }
  }
  const std::vector<std::string> names = ValueNames(type);
  return Invalid(absl::StrCat("unknown value ", Quoted(text),
                              DidYouMean(absl::AsciiStrToUpper(text.substr(0, 100)), names),
                              "; expected one of ", absl::StrJoin(names, ", ")));
}

bool LooksLikeInteger(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  return std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// "; write 10000" for 1e4, 10_000 or 10000.0.
std::string IntegerHint(const std::string& text) {
  std::string plain = text;
  std::erase_if(plain, [](char c) { return c == '_' || c == ','; });
  double value = 0;
  if (!absl::SimpleAtod(plain, &value) || value != std::floor(value) || std::fabs(value) > 1e15) {
    return "";
  }
  return absl::StrCat("; write ", static_cast<int64_t>(value));
}

template <typename Int>
absl::StatusOr<Int> ParseInteger(const std::string& text) {
  if (!LooksLikeInteger(text)) {
    return Invalid(absl::StrCat(Quoted(text), " is not an integer", IntegerHint(text)));
  }
  Int value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return Invalid(absl::StrCat(Quoted(text), " is out of range: expected an integer in [",
                                std::numeric_limits<Int>::min(), ", ",
                                std::numeric_limits<Int>::max(), "]"));
  }
  return value;
}

absl::StatusOr<double> ParseNumber(const std::string& text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == ".nan" || text == ".NaN" || text == ".NAN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (text == ".inf" || text == "+.inf" || text == ".Inf" || text == ".INF") return kInfinity;
  if (text == "-.inf" || text == "-.Inf" || text == "-.INF") return -kInfinity;
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) {
    return Invalid(absl::StrCat(Quoted(text), " is not a number"));
  }
  const bool says_infinite = absl::StrContains(absl::AsciiStrToLower(text), "inf");
  if (std::isinf(value) && !says_infinite) {
    return Invalid(
        absl::StrCat(Quoted(text), " is out of range of a 64-bit floating-point number"));
  }
  return value;
}

absl::StatusOr<bool> ParseBool(const std::string& text) {
  if (absl::EqualsIgnoreCase(text, "true")) return true;
  if (absl::EqualsIgnoreCase(text, "false")) return false;
  return Invalid(absl::StrCat(Quoted(text), " is neither true nor false"));
}

// Reflection has a Set and an Add per type; one of them is called, unless there is no value.
template <typename Value>
absl::Status Put(Message& message, const FieldDescriptor& field, absl::StatusOr<Value> value,
                 void (Reflection::*set)(Message*, const FieldDescriptor*, Value) const,
                 void (Reflection::*add)(Message*, const FieldDescriptor*, Value) const) {
  TY_RETURN_IF_ERROR(value.status());
  const Reflection& reflection = *message.GetReflection();
  (reflection.*(field.is_repeated() ? add : set))(&message, &field, *std::move(value));
  return absl::OkStatus();
}

}  // namespace

std::string Expected(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "a string";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("one of ", absl::StrJoin(ValueNames(*field.enum_type()), ", "));
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "a number";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "fields";
    default:
      return "an integer";
  }
}

absl::Status AssignScalar(Message& message, const FieldDescriptor& field, const Scalar& scalar) {
  const std::string& text = scalar.text;
  if (scalar.quoted && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
    return Invalid(absl::StrCat("expected ", Expected(field), ", found the string ", Quoted(text),
                                "; remove the quotes"));
  }
  using R = Reflection;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return Put(message, field, ParseBool(text), &R::SetBool, &R::AddBool);
    case FieldDescriptor::CPPTYPE_INT32:
      return Put(message, field, ParseInteger<int32_t>(text), &R::SetInt32, &R::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return Put(message, field, ParseInteger<int64_t>(text), &R::SetInt64, &R::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Put(message, field, ParseInteger<uint64_t>(text), &R::SetUInt64, &R::AddUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Put(message, field, ParseNumber(text), &R::SetDouble, &R::AddDouble);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Put(message, field, ParseEnum(*field.enum_type(), text), &R::SetEnum, &R::AddEnum);
    case FieldDescriptor::CPPTYPE_STRING:
      return Put(message, field, absl::StatusOr<std::string>(text), &R::SetString, &R::AddString);
    default:
      return Invalid(
          absl::StrCat("a field of type ", field.type_name(), " cannot be set from YAML"));
  }
}

}  // namespace trainyard::text
