#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard {

struct Principal {
  std::string name;  // "user:alice", "agent:node-1"
  std::string role;  // "admin" or "agent" today
};

// API tokens, stored as the SHA-256 of 256 random bits; the token itself is never stored.
class TokenStore {
 public:
  virtual ~TokenStore() = default;
  // Replaces an earlier token with the same hash. Idempotent.
  virtual absl::Status AddToken(const std::string& token_sha256, const Principal& principal) = 0;
  virtual absl::StatusOr<Principal> FindToken(const std::string& token_sha256) = 0;  // kNotFound
  virtual absl::Status RemoveToken(const std::string& token_sha256) = 0;
};

}  // namespace trainyard
