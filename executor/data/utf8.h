#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::data {

inline constexpr char32_t kLargestCodePoint = 0x10FFFF;

// Takes the code point that begins at text[at] and moves `at` past it. False, with `at` unmoved,
// when the bytes there are no UTF-8 (RFC 3629: no surrogates, no overlong forms, nothing past
// U+10FFFF).
bool TakeCodePoint(absl::string_view text, size_t& at, char32_t& code_point);

void AppendUtf8(char32_t code_point, std::string& text);

}  // namespace trainyard::data
