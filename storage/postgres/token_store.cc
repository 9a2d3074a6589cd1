#include "storage/postgres/token_store.h"

#include <pqxx/pqxx>

#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {

absl::Status PostgresTokenStore::AddToken(const std::string& token_sha256,
                                          const Principal& principal) {
  return database_.Run("add token", [&](Transaction& transaction) -> absl::Status {
    transaction.Run(kAddToken, Params(token_sha256, principal.name, principal.role));
    return absl::OkStatus();
  });
}

absl::StatusOr<Principal> PostgresTokenStore::FindToken(const std::string& token_sha256) {
  return database_.Run("find token", [&](Transaction& transaction) -> absl::StatusOr<Principal> {
    const pqxx::result rows = transaction.Run(kFindToken, Params(token_sha256));
    if (rows.empty()) return absl::NotFoundError("no such token");
    return Principal{rows[0]["name"].as<std::string>(), rows[0]["role"].as<std::string>()};
  });
}

absl::Status PostgresTokenStore::RemoveToken(const std::string& token_sha256) {
  return database_.Run("remove token", [&](Transaction& transaction) -> absl::Status {
    transaction.Run(kRemoveToken, Params(token_sha256));
    return absl::OkStatus();
  });
}

}  // namespace trainyard::postgres
