#include "storage/records/text.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

// Bytes of the character that begins `text`, or 0 when there is none (RFC 3629; NUL counts as
// none).
size_t CharacterBytes(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  if (lead == 0) return 0;
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && at(1) < 0xA0) || (lead == 0xF0 && at(1) < 0x90);
  const bool surrogate = lead == 0xED && at(1) > 0x9F;
  const bool beyond = lead == 0xF4 && at(1) > 0x8F;
  return overlong || surrogate || beyond ? 0 : bytes;
}

}  // namespace

absl::Status CheckText(absl::string_view field, absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text.substr(at));
    if (bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(field, ": byte ", at, " is ",
                                                     text[at] == 0 ? "NUL" : "not UTF-8",
                                                     "; expected UTF-8 text without NUL"));
    }
    at += bytes;
  }
  return absl::OkStatus();
}

std::string CleanText(absl::string_view text, size_t limit) {
  std::string clean;
  clean.reserve(std::min(text.size(), limit));
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text.substr(at));
    const absl::string_view next = bytes == 0 ? "\xEF\xBF\xBD" : text.substr(at, bytes);
    if (clean.size() + next.size() > limit) break;
    clean.append(next.data(), next.size());
    at += std::max<size_t>(bytes, 1);
  }
  return clean;
}

}  // namespace trainyard
