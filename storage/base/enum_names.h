#pragma once

// The names of an enum's values, for both directions in one table.

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"

namespace trainyard {

template <typename Enum, size_t kSize>
using EnumNames = std::pair<Enum, const char*>[kSize];

// The name that `names` has for `value`, or "UNKNOWN".
template <typename Enum, size_t kSize>
absl::string_view NameIn(const EnumNames<Enum, kSize>& names, Enum value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "UNKNOWN";
}

// The value that has this name, or nothing.
template <typename Enum, size_t kSize>
std::optional<Enum> ValueIn(const EnumNames<Enum, kSize>& names, absl::string_view name) {
  for (const auto& [value, known] : names) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace trainyard
