#include "server/api/page_token.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/base/digest.h"

namespace trainyard {
namespace {

// token = base64url(check + cursor), check = first 16 hex digits of SHA-256(question, NUL, cursor).
constexpr size_t kCheckSize = 16;
constexpr size_t kLongestToken = 4096;

std::string Check(absl::string_view question, absl::string_view cursor) {
  return Sha256Hex(absl::StrCat("page 1\n", question, absl::string_view("\0", 1), cursor))
      .substr(0, kCheckSize);
}

}  // namespace

std::string MakePageToken(absl::string_view question, absl::string_view cursor) {
  if (cursor.empty()) return "";
  return absl::WebSafeBase64Escape(absl::StrCat(Check(question, cursor), cursor));
}

absl::StatusOr<std::string> ReadPageToken(absl::string_view question, absl::string_view token) {
  if (token.empty()) return std::string();
  std::string text;
  if (token.size() <= kLongestToken && absl::WebSafeBase64Unescape(token, &text) &&
      text.size() > kCheckSize) {
    const std::string cursor = text.substr(kCheckSize);
    if (text.substr(0, kCheckSize) == Check(question, cursor)) return cursor;
  }
  return absl::InvalidArgumentError(
      "page_token: not a token from the same question (parent, filter); begin again without one");
}

}  // namespace trainyard
