#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

// The certificate authority of a yard, of which there is one at most.
struct AuthorityRecord {
  std::string certificate;  // PEM
  std::string sealed_key;   // its private key, encrypted under one that is not in the database
};

class AuthorityStore {
 public:
  virtual ~AuthorityStore() = default;
  // nullopt: the yard has none.
  virtual absl::StatusOr<std::optional<AuthorityRecord>> FindAuthority() = 0;
  // The authority that the yard has from now on: `record`, or the one that it had before.
  virtual absl::StatusOr<AuthorityRecord> AddAuthority(const AuthorityRecord& record) = 0;
};

}  // namespace trainyard
