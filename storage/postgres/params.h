#pragma once

// Values on their way into a statement. All travel as text; NULL is a missing optional, or a time
// that is infinite. A NUL in a text would cut it off on the wire: BadText is thrown instead (see
// fault.h).

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard::postgres {

struct BadText : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// PostgreSQL's array literal: {"a","b \" c"}.
std::string ArrayLiteral(const std::vector<std::string>& items);
std::string ArrayLiteral(const std::vector<int64_t>& items);
std::string ArrayLiteral(const std::vector<int>& items);
std::string ArrayLiteral(const std::vector<double>& items);  // exact; NaN, Infinity

// Bytes as \x0a1b….
std::string ByteaLiteral(absl::string_view bytes);

class Params {
 public:
  template <typename... Args>
  explicit Params(const Args&... args) {
    values_.reserve(sizeof...(args));
    (values_.push_back(Encode(args)), ...);
  }

  // For libpqxx; lives as long as this.
  std::vector<const char*> Pointers() const;

 private:
  using Value = std::optional<std::string>;

  static Value Encode(const std::string& text);
  static Value Encode(absl::string_view text) { return Encode(std::string(text)); }
  static Value Encode(const char* text) { return Encode(std::string(text)); }
  static Value Encode(const std::optional<std::string>& text) {
    return text.has_value() ? Encode(*text) : Value();
  }
  static Value Encode(int number) { return absl::StrCat(number); }
  static Value Encode(int64_t number) { return absl::StrCat(number); }
  static Value Encode(bool value) { return value ? "t" : "f"; }
  static Value Encode(absl::Time time);  // microseconds since 1970, for from_micros
  static Value Encode(absl::Duration duration) {
    return absl::StrCat(absl::ToInt64Microseconds(duration));
  }
  template <typename T>
  static Value Encode(const std::vector<T>& items) {
    return Encode(ArrayLiteral(items));
  }

  std::vector<Value> values_;
};

}  // namespace trainyard::postgres
