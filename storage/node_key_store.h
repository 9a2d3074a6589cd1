#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/records/node_key.h"

namespace trainyard {

// Join tokens, and the keys of nodes. Thread-safe. Every method is one transaction.
class NodeKeyStore {
 public:
  virtual ~NodeKeyStore() = default;

  // Keeps a new token, whose times are set here: it ends after `valid_for`. Forgets tokens that
  // ended more than 7 days ago.
  virtual absl::StatusOr<JoinToken> AddJoinToken(const JoinToken& token,
                                                 absl::Duration valid_for) = 0;
  // The newest first.
  virtual absl::StatusOr<std::vector<JoinToken>> ListJoinTokens() = 0;
  // Nobody joins with it any more; nodes that have, stay. Idempotent. kNotFound.
  virtual absl::StatusOr<JoinToken> RevokeJoinToken(const std::string& id) = 0;

  // As DecideJoin says.
  virtual absl::StatusOr<NodeKey> Join(const JoinWish& wish) = 0;

  virtual absl::StatusOr<NodeKey> FindNodeKey(const std::string& fingerprint) = 0;  // kNotFound

  // Revokes the key that has this name. The session of its agent cannot renew its lease any more:
  // what runs there is lost once the lease is over. Idempotent: of a name whose keys were all
  // revoked it returns the last one. kNotFound: no key ever had it.
  virtual absl::StatusOr<NodeKey> RevokeNode(const std::string& node, const std::string& by) = 0;
};

}  // namespace trainyard
