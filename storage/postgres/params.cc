#include "storage/postgres/params.h"

#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace trainyard::postgres {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return absl::StrFormat("%.17g", value);
}

}  // namespace

std::string ArrayLiteral(const std::vector<std::string>& items) {
  std::string literal = "{";
  for (const std::string& item : items) {
    if (literal.size() > 1) literal += ',';
    literal += '"';
    for (const char c : item) {
      if (c == '"' || c == '\\') literal += '\\';
      literal += c;
    }
    literal += '"';
  }
  return literal + "}";
}

std::string ArrayLiteral(const std::vector<int64_t>& items) {
  return absl::StrCat("{", absl::StrJoin(items, ","), "}");
}

std::string ArrayLiteral(const std::vector<int>& items) {
  return absl::StrCat("{", absl::StrJoin(items, ","), "}");
}

std::string ArrayLiteral(const std::vector<double>& items) {
  const auto format = [](std::string* out, double value) { out->append(Number(value)); };
  return absl::StrCat("{", absl::StrJoin(items, ",", format), "}");
}

std::string ByteaLiteral(absl::string_view bytes) {
  return absl::StrCat("\\x", absl::BytesToHexString(bytes));
}

Params::Value Params::Encode(const std::string& text) {
  if (text.find('\0') != std::string::npos) throw BadText("a text holds a NUL byte");
  return text;
}

Params::Value Params::Encode(absl::Time time) {
  if (time == absl::InfinitePast() || time == absl::InfiniteFuture()) return std::nullopt;
  return absl::StrCat(absl::ToUnixMicros(time));
}

std::vector<const char*> Params::Pointers() const {
  std::vector<const char*> pointers;
  pointers.reserve(values_.size());
  for (const Value& value : values_)
    pointers.push_back(value.has_value() ? value->c_str() : nullptr);
  return pointers;
}

}  // namespace trainyard::postgres
