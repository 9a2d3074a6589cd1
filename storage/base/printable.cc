#include "storage/base/printable.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trainyard {

namespace {

// The code point of the UTF-8 sequence of `length` bytes at the start of `text`.
char32_t CodePoint(absl::string_view text, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (length == 1) return byte(0);
  char32_t code = byte(0) & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) code = (code << 6) | (byte(i) & 0x3F);
  return code;
}

bool IsObeyed(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x061C || code == 0x200E ||
         code == 0x200F || (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

std::string Escaped(absl::string_view text, bool keep_lines) {
  std::string clean;
  while (!text.empty()) {
    const auto plain_end = std::find_if(text.begin(), text.end(), [](char c) {
      return static_cast<signed char>(c) < 0x20 || c == 0x7F;
    });
    const auto plain = static_cast<size_t>(plain_end - text.begin());
    clean.append(text.data(), plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const size_t length = CharacterBytes(text);
    const char32_t code =
        length == 0 ? static_cast<unsigned char>(text[0]) : CodePoint(text, length);
    if (length > 0 && (!IsObeyed(code) || (keep_lines && (code == '\n' || code == '\t')))) {
      clean.append(text.data(), length);
    } else if (code == '\n') {
      clean += "\\n";
    } else if (code == '\t') {
      clean += "\\t";
    } else {
      absl::StrAppend(&clean, code <= 0xFF
                                  ? absl::StrFormat("\\x%02x", static_cast<uint32_t>(code))
                                  : absl::StrFormat("\\u%04x", static_cast<uint32_t>(code)));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return clean;
}

}  // namespace

size_t CharacterBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (lead == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (lead == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;  // past U+10FFFF
  return length;
}

std::string EscapedLine(absl::string_view text) { return Escaped(text, false); }

std::string EscapedLines(absl::string_view text) { return Escaped(text, true); }

std::string DescribeBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return absl::StrFormat("%.1f %s", value, units[unit]);
}

size_t UnfinishedBytes(absl::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // the middle of a character
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC2 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

std::string Printable(absl::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control = (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
    if (length == 0 || control) {
      clean += '?';
      text.remove_prefix(1);
    } else {
      clean.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return clean;
}

}  // namespace trainyard
