#include "server/auth/authenticator.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kLongestToken = 1024;
constexpr size_t kMostRemembered = 1024;
constexpr absl::string_view kScheme = "bearer ";

absl::string_view TokenOf(absl::string_view authorization) {
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace

absl::StatusOr<Principal> Authenticator::Admit(absl::string_view authorization,
                                               Permission permission) {
  TY_ASSIGN_OR_RETURN(Principal principal, Authenticate(authorization));
  TY_RETURN_IF_ERROR(CheckPermission(principal, permission));
  return principal;
}

std::string Authenticator::PrincipalIfKnown(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  const absl::string_view token = TokenOf(authorization);
  if (token.size() > kLongestToken) return "";
  const std::string digest = Sha256Hex(token);
  absl::MutexLock lock(&mu_);
  const auto found = remembered_.find(digest);
  return found == remembered_.end() ? "" : found->second.principal.name;
}

absl::StatusOr<Principal> Authenticator::Authenticate(absl::string_view authorization) {
  if (authorization.empty()) {
    return absl::UnauthenticatedError(
        "no credentials: send the metadata 'authorization: Bearer TOKEN'");
  }
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return absl::UnauthenticatedError("authorization: expected 'Bearer TOKEN'");
  }
  const absl::string_view token = TokenOf(authorization);
  if (token.empty() || token.size() > kLongestToken) {
    return absl::UnauthenticatedError(
        absl::StrCat("authorization: a token of ", token.size(), " bytes"));
  }
  const std::string digest = Sha256Hex(token);
  const absl::Duration now = clock_.SinceBoot();
  {
    absl::MutexLock lock(&mu_);
    const auto found = remembered_.find(digest);
    if (found != remembered_.end() && found->second.until > now) return found->second.principal;
  }
  absl::StatusOr<Principal> principal = tokens_.FindToken(digest);
  if (absl::IsNotFound(principal.status())) {
    return absl::UnauthenticatedError(
        "the token is not known here (revoked, or of another server)");
  }
  TY_RETURN_IF_ERROR(principal.status());
  absl::MutexLock lock(&mu_);
  if (remembered_.size() >= kMostRemembered) remembered_.clear();
  remembered_[digest] = {*principal, now + remember_};
  return principal;
}

}  // namespace trainyard
