#include "storage/postgres/authority_store.h"

#include <pqxx/pqxx>

#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {
namespace {

std::optional<AuthorityRecord> ReadAuthority(Transaction& transaction) {
  const pqxx::result rows = transaction.Run(kFindAuthority, Params());
  if (rows.empty()) return std::nullopt;
  return AuthorityRecord{.certificate = rows[0]["certificate"].as<std::string>(),
                         .sealed_key = pqxx::binarystring(rows[0]["sealed_key"]).str()};
}

}  // namespace

absl::StatusOr<std::optional<AuthorityRecord>> PostgresAuthorityStore::FindAuthority() {
  using Found = absl::StatusOr<std::optional<AuthorityRecord>>;
  return database_.Run("find authority", [](Transaction& transaction) -> Found {
    return ReadAuthority(transaction);
  });
}

absl::StatusOr<AuthorityRecord> PostgresAuthorityStore::AddAuthority(
    const AuthorityRecord& record) {
  using Added = absl::StatusOr<AuthorityRecord>;
  return database_.Run("add authority", [&record](Transaction& transaction) -> Added {
    transaction.Run(kAddAuthority, Params(record.certificate, ByteaLiteral(record.sealed_key)));
    // Another server may have been first; its row is seen here, since it waited for that.
    const std::optional<AuthorityRecord> now = ReadAuthority(transaction);
    if (!now.has_value()) return absl::UnavailableError("the yard's authority was just removed");
    return *now;
  });
}

}  // namespace trainyard::postgres
