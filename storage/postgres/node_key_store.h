#pragma once

#include <optional>

#include "storage/node_key_store.h"
#include "storage/postgres/database.h"

namespace trainyard::postgres {

// The key in the first of these rows, if there is any.
std::optional<NodeKey> FirstKey(const pqxx::result& rows);

class PostgresNodeKeyStore : public NodeKeyStore {
 public:
  explicit PostgresNodeKeyStore(Database& database) : database_(database) {}

  absl::StatusOr<JoinToken> AddJoinToken(const JoinToken& token, absl::Duration valid_for) override;
  absl::StatusOr<std::vector<JoinToken>> ListJoinTokens() override;
  absl::StatusOr<JoinToken> RevokeJoinToken(const std::string& id) override;
  absl::StatusOr<NodeKey> Join(const JoinWish& wish) override;
  absl::StatusOr<NodeKey> FindNodeKey(const std::string& fingerprint) override;
  absl::StatusOr<NodeKey> RevokeNode(const std::string& node, const std::string& by) override;

 private:
  Database& database_;
};

}  // namespace trainyard::postgres
