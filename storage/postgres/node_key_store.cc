#include "storage/postgres/node_key_store.h"

#include <pqxx/pqxx>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/postgres/provision_store.h"
#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {
namespace {

constexpr absl::Duration kTokensKept = absl::Hours(24 * 7);

absl::Time TimeIn(const pqxx::field& field) {
  return field.is_null() ? absl::InfiniteFuture() : absl::FromUnixMicros(field.as<int64_t>());
}

JoinToken JoinTokenOf(const pqxx::row& row) {
  return {.id = row["id"].as<std::string>(),
          .sha256 = row["sha256"].as<std::string>(),
          .pool = row["pool"].as<std::string>(),
          .creator = row["creator"].as<std::string>(),
          .most_joins = row["most_joins"].as<int>(),
          .joins = row["joins"].as<int>(),
          .create_time = TimeIn(row["create_time"]),
          .expire_time = TimeIn(row["expire_time"]),
          .revoke_time = TimeIn(row["revoke_time"])};
}

NodeKey NodeKeyOf(const pqxx::row& row) {
  return {.fingerprint = row["fingerprint"].as<std::string>(),
          .node = row["node"].as<std::string>(),
          .node_uid = row["node_uid"].as<std::string>(),
          .pool = row["pool"].as<std::string>(),
          .token_id = row["token_id"].as<std::string>(),
          .join_time = TimeIn(row["join_time"]),
          .revoke_time = TimeIn(row["revoke_time"]),
          .revoked_by = row["revoked_by"].as<std::string>()};
}

// Takes `query`, one of those that find a join token, and sets `now` to the store's time.
std::optional<JoinToken> FindToken(Transaction& transaction, const Query& query,
                                   const JoinWish& wish, absl::Time& now) {
  const pqxx::result rows = transaction.Run(query, Params(wish.token_sha256));
  if (rows.empty()) return std::nullopt;
  now = TimeIn(rows[0]["now"]);
  return JoinTokenOf(rows[0]);
}

}  // namespace

std::optional<NodeKey> FirstKey(const pqxx::result& rows) {
  if (rows.empty()) return std::nullopt;
  return NodeKeyOf(rows[0]);
}

absl::StatusOr<JoinToken> PostgresNodeKeyStore::AddJoinToken(const JoinToken& token,
                                                             absl::Duration valid_for) {
  TY_RETURN_IF_ERROR(CheckJoinToken(token, valid_for));
  return database_.Run(
      "add join token", [&](Transaction& transaction) -> absl::StatusOr<JoinToken> {
        transaction.Run(kForgetJoinTokens, Params(kTokensKept));
        return JoinTokenOf(
            transaction.Run(kAddJoinToken, Params(token.id, token.sha256, token.pool, token.creator,
                                                  token.most_joins, valid_for))[0]);
      });
}

absl::StatusOr<std::vector<JoinToken>> PostgresNodeKeyStore::ListJoinTokens() {
  using Tokens = absl::StatusOr<std::vector<JoinToken>>;
  return database_.Run("list join tokens", [](Transaction& transaction) -> Tokens {
    std::vector<JoinToken> tokens;
    const pqxx::result rows = transaction.Run(kListJoinTokens, Params());
    for (const pqxx::row& row : rows) tokens.push_back(JoinTokenOf(row));
    return tokens;
  });
}

absl::StatusOr<JoinToken> PostgresNodeKeyStore::RevokeJoinToken(const std::string& id) {
  using Revoked = absl::StatusOr<JoinToken>;
  return database_.Run("revoke join token", [&](Transaction& transaction) -> Revoked {
    const pqxx::result rows = transaction.Run(kRevokeJoinToken, Params(id));
    if (rows.empty()) return absl::NotFoundError(absl::StrCat("no join token ", id));
    return JoinTokenOf(rows[0]);
  });
}

absl::StatusOr<NodeKey> PostgresNodeKeyStore::Join(const JoinWish& wish) {
  // Whoever has no token that holds is refused before others have to wait for it.
  TY_RETURN_IF_ERROR(database_.Run(
      "find join token",
      [&](Transaction& transaction) -> absl::Status {
        absl::Time now;
        const std::optional<JoinToken> token = FindToken(transaction, kFindJoinToken, wish, now);
        return CheckJoinTokenHolds(token, now);
      },
      Access::kStatements));
  return database_.Run("join", [&](Transaction& transaction) -> absl::StatusOr<NodeKey> {
    transaction.Run(kLockNodeKeys, Params());
    JoinFacts facts;
    absl::Time now;
    facts.token = FindToken(transaction, kLockJoinToken, wish, now);
    facts.known = FirstKey(transaction.Run(kFindNodeKey, Params(wish.fingerprint)));
    facts.holder = FirstKey(transaction.Run(kFindKeyOfName, Params(wish.node)));
    if (facts.holder.has_value() && facts.holder->fingerprint == wish.fingerprint) {
      facts.holder.reset();
    }
    const pqxx::result registered = transaction.Run(kRegisteredUid, Params(wish.node));
    if (!registered.empty()) facts.registered = registered[0]["uid"].as<std::string>();
    facts.request = FindNodeRequest(transaction, wish.node);
    TY_ASSIGN_OR_RETURN(const Joined joined, DecideJoin(wish, facts, now));
    if (!joined.counts) return joined.key;
    const NodeKey& key = joined.key;
    transaction.Run(kCountJoin, Params(key.token_id));
    transaction.Run(kWriteNodeKey, Params(key.fingerprint, key.node, key.node_uid, key.pool,
                                          key.token_id, key.join_time));
    return key;
  });
}

absl::StatusOr<NodeKey> PostgresNodeKeyStore::FindNodeKey(const std::string& fingerprint) {
  return database_.Run(
      "find node key",
      [&](Transaction& transaction) -> absl::StatusOr<NodeKey> {
        const std::optional<NodeKey> key =
            FirstKey(transaction.Run(kFindNodeKey, Params(fingerprint)));
        if (!key.has_value()) return absl::NotFoundError("no node has joined with this key");
        return *key;
      },
      Access::kStatements);
}

absl::StatusOr<NodeKey> PostgresNodeKeyStore::RevokeNode(const std::string& node,
                                                         const std::string& by) {
  return database_.Run("revoke node", [&](Transaction& transaction) -> absl::StatusOr<NodeKey> {
    transaction.Run(kLockNodeKeys, Params());
    const std::optional<NodeKey> revoked =
        FirstKey(transaction.Run(kRevokeKeyOfName, Params(node, by)));
    if (revoked.has_value()) {
      transaction.Run(kTakeLeaseBack, Params(node));
      return *revoked;
    }
    const std::optional<NodeKey> before =
        FirstKey(transaction.Run(kFindRevokedKeyOfName, Params(node)));
    if (before.has_value()) return *before;
    return NeverJoined(node);
  });
}

}  // namespace trainyard::postgres
