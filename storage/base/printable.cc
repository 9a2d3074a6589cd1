#include "storage/base/printable.h"

namespace trainyard {

namespace {

// Length of the UTF-8 sequence at the start of `text`, 0 when there is none.
size_t SequenceLength(absl::string_view text) {
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

}  // namespace

std::string Printable(absl::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
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
