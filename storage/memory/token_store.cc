#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

absl::Status MemoryStores::AddToken(const std::string& token_sha256, const Principal& principal) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TokenRecord& token = tokens_[token_sha256];
  token.id = TokenIdOf(token_sha256);
  token.principal = principal;
  return absl::OkStatus();
}

absl::StatusOr<TokenRecord> MemoryStores::CreateToken(const std::string& token_sha256,
                                                      const TokenRecord& token,
                                                      absl::Duration valid_for) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TokenRecord& made = tokens_[token_sha256];
  made = token;
  made.id = TokenIdOf(token_sha256);
  made.create_time = Now();
  made.expire_time = made.create_time + valid_for;
  return made;
}

absl::StatusOr<std::vector<TokenRecord>> MemoryStores::ListTokens(const std::string& project,
                                                                  const std::string& after,
                                                                  int limit) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<TokenRecord> tokens;
  for (const auto& [digest, token] : tokens_) {  // by digest, and so by id
    const bool wanted = project.empty() || token.principal.project == project;
    if (!wanted || token.id <= after) continue;
    if (tokens.size() < static_cast<size_t>(limit)) tokens.push_back(token);
  }
  return tokens;
}

absl::StatusOr<TokenRecord> MemoryStores::RevokeToken(const std::string& project,
                                                      const std::string& id) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  for (auto& [digest, token] : tokens_) {
    if (token.id != id || (!project.empty() && token.principal.project != project)) continue;
    token.revoke_time = std::min(token.revoke_time, Now());
    return token;
  }
  return absl::NotFoundError(absl::StrCat("no token ", id));
}

bool MemoryStores::Holds(const std::string& token_sha256) {
  const auto found = tokens_.find(token_sha256);
  return found != tokens_.end() && found->second.revoke_time == absl::InfiniteFuture() &&
         found->second.expire_time > Now();
}

absl::StatusOr<Principal> MemoryStores::FindToken(const std::string& token_sha256) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  if (!Holds(token_sha256)) return absl::NotFoundError("no such token");
  return tokens_[token_sha256].principal;
}

absl::StatusOr<std::vector<std::string>> MemoryStores::FindEnded(
    const std::vector<std::string>& token_sha256s) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<std::string> ended;
  for (const std::string& digest : token_sha256s) {
    if (!Holds(digest)) ended.push_back(digest);
  }
  return ended;
}

}  // namespace trainyard
