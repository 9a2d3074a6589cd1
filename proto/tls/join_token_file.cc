#include "proto/tls/join_token_file.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/tls/certificate.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kTokenBytes = 32;
constexpr char kBegin[] = "-----BEGIN TRAINYARD JOIN TOKEN-----";
constexpr char kEnd[] = "-----END TRAINYARD JOIN TOKEN-----";

bool IsJoinToken(absl::string_view text) {
  return text.size() == 2 * kTokenBytes &&
         text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

}  // namespace

std::string MakeJoinToken() { return RandomHex(kTokenBytes); }

std::string JoinTokenFileText(const JoinTokenFile& file) {
  return absl::StrCat(kBegin, "\n", file.token, "\n", kEnd, "\n", file.authorities);
}

absl::StatusOr<JoinTokenFile> ParseJoinTokenFile(const std::string& text,
                                                 const std::string& source) {
  const size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, " holds no join token: expected the file that `trainyard admin join-token` made, ",
        "with ", kBegin));
  }
  const absl::string_view inside =
      absl::string_view(text).substr(begin + sizeof(kBegin) - 1, end - begin - sizeof(kBegin) + 1);
  JoinTokenFile file{.token = std::string(absl::StripAsciiWhitespace(inside))};
  if (!IsJoinToken(file.token)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": expected a join token of ",
                                                   2 * kTokenBytes, " hex digits, found ",
                                                   file.token.size(), " other characters"));
  }
  TY_ASSIGN_OR_RETURN(file.authorities, CertificatesIn(text.substr(end), source));
  return file;
}

}  // namespace trainyard
