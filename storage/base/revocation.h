#pragma once

// Which credentials were revoked, as servers write it down outside of the database: one that is
// restored from a backup does not know what was revoked since the backup was made.

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace trainyard {

enum class CredentialKind {
  kToken,      // an API token, by its id
  kJoinToken,  // by its id
  kNodeKey,    // by its fingerprint
};

struct RevokedCredential {
  CredentialKind kind = CredentialKind::kToken;
  std::string id;
  friend bool operator==(const RevokedCredential&, const RevokedCredential&) = default;
};

// One line of a file of revocations: {"revoked": "token", "id": …, "time": …}.
std::string RevocationLine(const RevokedCredential& revoked, absl::Time time);
// nullopt: it is no such line.
std::optional<RevokedCredential> ParseRevocationLine(const std::string& line);

}  // namespace trainyard
