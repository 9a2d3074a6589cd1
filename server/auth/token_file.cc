#include "server/auth/token_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "server/auth/permissions.h"
#include "storage/base/digest.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {

absl::StatusOr<TokenFile> ParseTokenFlag(absl::string_view flag) {
  const size_t first = flag.find(':');
  const size_t second = first == flag.npos ? flag.npos : flag.find(':', first + 1);
  if (second == flag.npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file '", flag, "': expected ROLE:NAME:PATH"));
  }
  TokenFile file;
  file.principal.role = std::string(flag.substr(0, first));
  const absl::string_view name = flag.substr(first + 1, second - first - 1);
  file.principal.name = absl::StrCat(file.principal.role == kRoleAgent ? "agent:" : "user:", name);
  file.path = std::string(flag.substr(second + 1));
  // It counts in the whole yard and never ends; other roles are for tokens that an admin makes.
  if (file.principal.role != kRoleAdmin && file.principal.role != kRoleAgent) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--token-file '", flag, "': role '", file.principal.role, "': expected admin or agent"));
  }
  if (name.empty() || file.path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file '", flag, "': NAME and PATH must not be empty"));
  }
  return file;
}

absl::Status AddTokenFile(const TokenFile& file, TokenStore& tokens) {
  struct stat info;
  if (stat(file.path.c_str(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("token file ", file.path));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("token file %s: mode %04o lets others read it; chmod 600 it", file.path,
                        static_cast<unsigned>(info.st_mode & 07777)));
  }
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(file.path, 4096));
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  const bool printable = std::all_of(token.begin(), token.end(), absl::ascii_isgraph);
  if (token.size() < 32 || !printable) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token file ", file.path, ": expected one line of at least 32 printable characters, found ",
        token.size()));
  }
  return tokens.AddToken(Sha256Hex(token), file.principal);
}

}  // namespace trainyard
