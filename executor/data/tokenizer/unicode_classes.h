#pragma once

// What code points are to the regular expressions that cut text into words.

#include <array>
#include <cstdint>

namespace trainyard::data {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// By code point, in Unicode 16.0; what lies past the end is kOther.
extern const std::array<CharClass, 0x32400> kCharClasses;

// \p{L}, \p{N}, \s (the property White_Space), or none of them.
inline CharClass ClassOf(char32_t c) {
  return c < kCharClasses.size() ? kCharClasses[c] : CharClass::kOther;
}

}  // namespace trainyard::data
