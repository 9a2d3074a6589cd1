#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::text {

// Offset of the first byte that does not belong to well-formed UTF-8 (RFC 3629), or npos.
inline size_t FirstInvalidUtf8(absl::string_view s) {
  size_t i = 0;
  const auto continues = [&](size_t at) {
    return at < s.size() && (static_cast<unsigned char>(s[at]) & 0xC0) == 0x80;
  };
  while (i < s.size()) {
    const unsigned char lead = static_cast<unsigned char>(s[i]);
    const unsigned char next = i + 1 < s.size() ? static_cast<unsigned char>(s[i + 1]) : 0;
    size_t length = 0;
    if (lead < 0x80)
      length = 1;
    else if (lead >= 0xC2 && lead <= 0xDF)
      length = 2;
    else if (lead >= 0xE0 && lead <= 0xEF)
      length = 3;
    else if (lead >= 0xF0 && lead <= 0xF4)
      length = 4;
    // Overlong forms, surrogates and what lies past U+10FFFF.
    const bool forbidden = (lead == 0xE0 && next < 0xA0) || (lead == 0xED && next > 0x9F) ||
                           (lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next > 0x8F);
    if (length == 0 || forbidden) return i;
    for (size_t k = 1; k < length; ++k) {
      if (!continues(i + k)) return i;
    }
    i += length;
  }
  return std::string::npos;
}

}  // namespace trainyard::text
