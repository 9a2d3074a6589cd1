#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::data {

inline constexpr char32_t kLargestCodePoint = 0x10FFFF;

// Takes the code point that begins at text[at] and moves `at` past it. False, with `at` unmoved,
// when the bytes there are no UTF-8 (RFC 3629: no surrogates, no overlong forms, nothing past
// U+10FFFF).
bool TakeCodePoint(absl::string_view text, size_t& at, char32_t& code_point);

// Whether `byte` begins a code point, in what is UTF-8.
inline bool BeginsCodePoint(char byte) { return (byte & 0xC0) != 0x80; }

// Bytes that begin a code point.
int64_t CountCodePoints(absl::string_view text);

// Bytes of `text` before its code point number `n`; all of them where it has no such.
size_t BytesBefore(absl::string_view text, int64_t n);

// Whether the eight bytes at `at` are ASCII.
inline bool EightAscii(const char* at) {
  uint64_t eight;
  std::memcpy(&eight, at, sizeof(eight));
  return (eight & 0x8080808080808080) == 0;
}

void AppendUtf8(char32_t code_point, std::string& text);

// Makes characters of bytes that come in pieces. What can be no UTF-8 becomes U+FFFD, one for each
// maximal part of a character, as in the Unicode Standard, section 3.9, and as `tokenizers`
// decodes.
class Utf8Stream {
 public:
  // The characters that end with `bytes`; the beginning of another one is held back.
  std::string Add(absl::string_view bytes);

  // What the end makes of that beginning: U+FFFD, or "" when there is none.
  std::string Finish();

 private:
  std::string held_;
};

}  // namespace trainyard::data
