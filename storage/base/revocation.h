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

// The first line of such a file: {"begun": TIME}. What was revoked before is not in it.
std::string RevocationsBegunLine(absl::Time time);
std::optional<absl::Time> ParseRevocationsBegunLine(const std::string& line);

// One line of a file of revocations: {"revoked": "token", "id": …, "time": …}.
std::string RevocationLine(const RevokedCredential& revoked, absl::Time time);
// nullopt: it is no such line.
std::optional<RevokedCredential> ParseRevocationLine(const std::string& line);

}  // namespace trainyard
