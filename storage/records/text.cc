#include "storage/records/text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// Bytes of the character that begins `text`; 0: it is not UTF-8, or NUL.
size_t BytesToKeep(absl::string_view text) { return text[0] == '\0' ? 0 : CharacterBytes(text); }

}  // namespace

absl::Status CheckText(absl::string_view field, absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = BytesToKeep(text.substr(at));
    if (bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(field, ": byte ", at, " is ",
                                                     text[at] == 0 ? "NUL" : "not UTF-8",
                                                     "; expected UTF-8 text without NUL"));
    }
    at += bytes;
  }
  return absl::OkStatus();
}

absl::Status CheckReason(const Reason& reason) {
  TY_RETURN_IF_ERROR(CheckText("reason.code", reason.code));
  return CheckText("reason.message", reason.message);
}

std::string CleanText(absl::string_view text, size_t limit) {
  std::string clean;
  clean.reserve(std::min(text.size(), limit));
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = BytesToKeep(text.substr(at));
    const absl::string_view next = bytes == 0 ? "\xEF\xBF\xBD" : text.substr(at, bytes);
    if (clean.size() + next.size() > limit) break;
    clean.append(next.data(), next.size());
    at += std::max<size_t>(bytes, 1);
  }
  return clean;
}

}  // namespace trainyard
