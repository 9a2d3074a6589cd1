#include "server/auth/authenticator.h"

#include <spdlog/spdlog.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kLongestToken = 1024;
constexpr size_t kMostRemembered = 16'384;
constexpr absl::string_view kScheme = "bearer ";

absl::string_view TokenOf(absl::string_view authorization) {
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

absl::Status NotKnown() {
  return absl::UnauthenticatedError(
      "the token is not known here: it has ended, was revoked, or is of another yard");
}

}  // namespace

struct Authenticator::Stream {
  std::shared_ptr<Streams> all;
  End end;
  // Under the lock of all; nullopt: its token counts no more.
  std::optional<std::multimap<std::string, Stream*>::iterator> place;

  ~Stream();
};

struct Authenticator::Streams {
  absl::Mutex mu;
  std::multimap<std::string, Stream*> by_digest ABSL_GUARDED_BY(mu);  // of the token that opened it
};

Authenticator::Stream::~Stream() {
  absl::MutexLock lock(&all->mu);
  if (place.has_value()) all->by_digest.erase(*place);
}

Authenticator::Authenticator(TokenStore& tokens, Clock& clock, absl::Duration remember)
    : tokens_(tokens), clock_(clock), remember_(remember), streams_(std::make_shared<Streams>()) {}

absl::StatusOr<Authenticator::Guarded> Authenticator::AdmitStream(absl::string_view authorization,
                                                                  Permission permission, End end) {
  TY_ASSIGN_OR_RETURN(Principal principal, Admit(authorization, permission));
  auto stream = std::make_shared<Stream>();
  stream->all = streams_;
  stream->end = std::move(end);
  const std::string digest = Sha256Hex(TokenOf(authorization));
  absl::MutexLock lock(&streams_->mu);
  stream->place = streams_->by_digest.emplace(digest, stream.get());
  return Guarded{std::move(principal), std::move(stream)};
}

void Authenticator::LookAgain() {
  std::vector<std::string> digests;
  {
    absl::MutexLock lock(&streams_->mu);
    for (auto it = streams_->by_digest.begin(); it != streams_->by_digest.end();
         it = streams_->by_digest.upper_bound(it->first)) {
      digests.push_back(it->first);
    }
  }
  if (digests.empty()) return;
  const absl::StatusOr<std::vector<std::string>> ended = tokens_.FindEnded(digests);
  if (!ended.ok()) {  // should it stay away, it ends all streams by itself
    spdlog::warn("whether tokens of open streams still count is not known: {}",
                 ended.status().ToString());
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    for (const std::string& digest : *ended) remembered_.erase(digest);
  }
  // Called without the lock, and gone before it is taken again: what they end may end the last user
  // of a guard.
  std::vector<End> ends;
  {
    absl::MutexLock lock(&streams_->mu);
    for (const std::string& digest : *ended) {
      const auto [from, to] = streams_->by_digest.equal_range(digest);
      for (auto it = from; it != to; ++it) {
        it->second->place.reset();
        ends.push_back(std::move(it->second->end));
      }
      streams_->by_digest.erase(from, to);
    }
  }
  for (const End& end : ends) end(NotKnown());
}

absl::StatusOr<Principal> Authenticator::Admit(absl::string_view authorization,
                                               Permission permission) {
  TY_ASSIGN_OR_RETURN(Principal principal, Authenticate(authorization));
  TY_RETURN_IF_ERROR(CheckPermission(principal, permission));
  return principal;
}

std::optional<Principal> Authenticator::PrincipalIfKnown(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return std::nullopt;
  const absl::string_view token = TokenOf(authorization);
  if (token.size() > kLongestToken) return std::nullopt;
  const std::string digest = Sha256Hex(token);
  absl::MutexLock lock(&mu_);
  const auto found = remembered_.find(digest);
  if (found == remembered_.end()) return std::nullopt;
  return found->second.principal;
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
    return NotKnown();
  }
  TY_RETURN_IF_ERROR(principal.status());
  principal->credential = absl::StrCat("tokens/", TokenIdOf(digest));
  absl::MutexLock lock(&mu_);
  if (remembered_.size() >= kMostRemembered) {
    absl::erase_if(remembered_, [now](const auto& one) { return one.second.until <= now; });
    if (remembered_.size() >= kMostRemembered) remembered_.clear();
  }
  remembered_[digest] = {*principal, now + remember_};
  return principal;
}

}  // namespace trainyard
