#include "executor/data/files/utf8.h"

namespace trainyard::data {

namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

enum class Part { kCharacter, kBeginning, kNone };

// What `text` (not empty) begins with, in `bytes` bytes: a character, a beginning that the text's
// end cuts off, or what belongs to no character (Unicode Standard, table 3-7).
Part PartAt(absl::string_view text, size_t& bytes) {
  const auto lead = static_cast<unsigned char>(text[0]);
  bytes = 1;
  if (lead < 0x80) return Part::kCharacter;
  if (lead < 0xC2 || lead > 0xF4) return Part::kNone;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (; bytes < length; ++bytes) {
    if (bytes == text.size()) return Part::kBeginning;
    const auto next = static_cast<unsigned char>(text[bytes]);
    if (next < low || next > high) return Part::kNone;
    low = 0x80, high = 0xBF;
  }
  return Part::kCharacter;
}

}  // namespace

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

int64_t CountCodePoints(absl::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size();) {
    if (text.size() - at >= 8 && EightAscii(text.data() + at)) {
      count += 8;
      at += 8;
    } else {
      if (BeginsCodePoint(text[at])) ++count;
      ++at;
    }
  }
  return count;
}

size_t BytesBefore(absl::string_view text, int64_t n) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (BeginsCodePoint(text[at]) && n-- == 0) break;
  }
  return at;
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

std::string Utf8Stream::Add(absl::string_view bytes) {
  held_.append(bytes.data(), bytes.size());
  std::string whole;
  absl::string_view rest = held_;
  while (!rest.empty()) {
    size_t n;
    const Part part = PartAt(rest, n);
    if (part == Part::kBeginning) break;
    whole += part == Part::kCharacter ? std::string(rest.substr(0, n)) : kReplacement;
    rest.remove_prefix(n);
  }
  held_ = std::string(rest);
  return whole;
}

std::string Utf8Stream::Finish() {
  const bool begun = !held_.empty();
  held_.clear();
  return begun ? kReplacement : "";
}

}  // namespace trainyard::data
