#include "executor/data/utf8.h"

namespace trainyard::data {

bool TakeCodePoint(absl::string_view text, size_t& at, char32_t& code_point) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) {
    code_point = lead;
    ++at;
    return true;
  }
  size_t length = 0;
  char32_t smallest = 0;  // of this length: anything less is overlong
  if ((lead & 0xE0) == 0xC0) length = 2, smallest = 0x80, code_point = lead & 0x1F;
  if ((lead & 0xF0) == 0xE0) length = 3, smallest = 0x800, code_point = lead & 0x0F;
  if ((lead & 0xF8) == 0xF0) length = 4, smallest = 0x10000, code_point = lead & 0x07;
  if (length == 0 || text.size() - at < length) return false;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return false;
    code_point = code_point << 6 | (byte(at + i) & 0x3F);
  }
  if (code_point < smallest || code_point > kLargestCodePoint) return false;
  if (code_point >= 0xD800 && code_point < 0xE000) return false;
  at += length;
  return true;
}

void AppendUtf8(char32_t c, std::string& text) {
  const auto append = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    append(c);
  } else if (c < 0x800) {
    append(0xC0 | c >> 6);
    append(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    append(0xE0 | c >> 12);
    append(0x80 | (c >> 6 & 0x3F));
    append(0x80 | (c & 0x3F));
  } else {
    append(0xF0 | c >> 18);
    append(0x80 | (c >> 12 & 0x3F));
    append(0x80 | (c >> 6 & 0x3F));
    append(0x80 | (c & 0x3F));
  }
}

}  // namespace trainyard::data
