#pragma once

// Integers as they travel between ranks: little-endian, of a fixed width.

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace trainyard::engine {

static_assert(std::endian::native == std::endian::little);

template <typename Integer>
void AppendInteger(Integer value, std::string& out) {
  static_assert(std::is_integral_v<Integer>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Takes fixed-width fields off the front of `bytes`, which must be long enough: the caller has
// checked the length of the whole.
template <typename Integer>
Integer ConsumeInteger(absl::string_view& bytes) {
  static_assert(std::is_integral_v<Integer>);
  Integer value;
  std::memcpy(&value, bytes.substr(0, sizeof value).data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

inline absl::string_view ConsumeBytes(absl::string_view& bytes, size_t count) {
  const absl::string_view front = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return front;
}

}  // namespace trainyard::engine
