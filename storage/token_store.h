#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

// Who calls, and what for.
struct Principal {
  std::string name;     // "user:alice", "service:ci", "agent:node-1"
  std::string role;     // see server/auth/permissions.h
  std::string project;  // the one project in which the role counts; empty: in the whole yard
  std::string credential = {};  // by what it was admitted, "tokens/ID"; of a call
};

// A token with which a principal calls: 256 random bits, of which the digest alone is kept.
struct TokenRecord {
  std::string id;  // the first 16 hex digits of the digest, by which people name it; no secret
  Principal principal;
  std::string creator;  // empty: a server was started with it (--token-file)
  absl::Time create_time;
  absl::Time expire_time = absl::InfiniteFuture();  // infinite: never
  absl::Time revoke_time = absl::InfiniteFuture();  // infinite: it was not
};

// The id of a token, by its digest.
inline std::string TokenIdOf(const std::string& token_sha256) { return token_sha256.substr(0, 16); }

// API tokens. Thread-safe. Every method is one transaction.
class TokenStore {
 public:
  virtual ~TokenStore() = default;

  // A token that a server was started with, for the whole yard. Replaces an earlier principal of
  // the same token; one that was revoked stays so. Idempotent.
  virtual absl::Status AddToken(const std::string& token_sha256, const Principal& principal) = 0;

  // A token that somebody makes; the times are set here. Forgets those that ended, or were revoked,
  // more than 30 days ago.
  virtual absl::StatusOr<TokenRecord> CreateToken(const std::string& token_sha256,
                                                  const TokenRecord& token,
                                                  absl::Duration valid_for) = 0;

  // Of this project, or if it is empty all: at most `limit` of them, by id, from the one behind
  // `after` on.
  virtual absl::StatusOr<std::vector<TokenRecord>> ListTokens(const std::string& project,
                                                              const std::string& after,
                                                              int limit) = 0;

  // If `project` is not empty, a token of another one is not found. Idempotent. kNotFound.
  virtual absl::StatusOr<TokenRecord> RevokeToken(const std::string& project,
                                                  const std::string& id) = 0;

  // kNotFound: there is no such token, or it has ended, or was revoked.
  virtual absl::StatusOr<Principal> FindToken(const std::string& token_sha256) = 0;

  // Those of these tokens that FindToken does not find.
  virtual absl::StatusOr<std::vector<std::string>> FindEnded(
      const std::vector<std::string>& token_sha256s) = 0;
};

}  // namespace trainyard
