// Migrations: numbered, forward only, applied under an advisory lock, checked by digest.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <pqxx/pqxx>

#include "storage/base/digest.h"
#include "storage/base/status.h"
#include "storage/postgres/database.h"
#include "storage/postgres/migrations.inc.h"

namespace trainyard::postgres {
namespace {

// Any fixed number; "Tyrd" in ASCII. Released with the transaction.
constexpr char kLock[] = "SELECT pg_advisory_xact_lock(1417245284)";

// Whoever wants a lock queues behind a migration that waits for one. So a migration waits briefly
// and fails with kUnavailable, which lets them through; its caller tries again.
constexpr char kLockTimeout[] = "SET LOCAL lock_timeout = '2s'";

constexpr char kTable[] =
    "CREATE TABLE IF NOT EXISTS schema_migrations ("
    "version integer PRIMARY KEY, name text NOT NULL, sha256 text NOT NULL,"
    "applied_at timestamptz NOT NULL DEFAULT now())";

// works_with: how many migrations a program has to know to work with the tables as this one left
// them; NULL: this one, too.
constexpr char kWorksWith[] =
    "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = "
    "'schema_migrations'::regclass AND attname = 'works_with') "
    "THEN ALTER TABLE schema_migrations ADD COLUMN works_with integer; END IF; END $$";

// Applies the oldest migration that is missing, up to `last`. Returns its version, or 0 when none
// is.
absl::StatusOr<int> ApplyNext(Transaction& transaction, int last) {
  transaction.RunText(kLock, Params());
  transaction.RunText(kTable, Params());
  transaction.RunText(kWorksWith, Params());
  const pqxx::result applied = transaction.RunText(
      "SELECT version, name, sha256, works_with FROM schema_migrations ORDER BY version", Params());
  size_t known_ones = 0;
  for (const pqxx::row& row : applied) {
    const int version = row["version"].as<int>();
    const Migration* known =
        std::find_if(std::begin(kMigrations), std::end(kMigrations),
                     [version](const Migration& m) { return m.version == version; });
    if (known == std::end(kMigrations)) {
      // This program is of an older version, while servers are replaced one by one or after a
      // roll-back.
      if (!row["works_with"].is_null() && row["works_with"].as<int>() <= SchemaVersion()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the database has migration ", row["name"].c_str(), ", this program knows only ",
          SchemaVersion(), " migrations: use a newer trainyard-server"));
    }
    ++known_ones;
    if (Sha256Hex(known->sql) != row["sha256"].as<std::string>()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "migration ", known->name, " differs from the one that the database was made with"));
    }
  }
  if (known_ones == std::size(kMigrations)) return 0;
  const Migration& next = kMigrations[known_ones];
  if (next.version > last) return 0;
  transaction.RunText(kLockTimeout, Params());
  transaction.RunScript(next.sql);
  transaction.RunText(
      "INSERT INTO schema_migrations (version, name, sha256, works_with) "
      "VALUES ($1, $2, $3, $4)",
      Params(next.version, next.name, Sha256Hex(next.sql), next.works_with));
  return next.version;
}

}  // namespace

int SchemaVersion() { return static_cast<int>(std::size(kMigrations)); }

absl::Status Migrate(const std::string& conninfo, int last) {
  Options options;
  options.application_name = "trainyard-migrate";
  options.statement_timeout = absl::ZeroDuration();  // none
  TY_ASSIGN_OR_RETURN(const std::string complete, CompleteConninfo(conninfo, options));
  Database database(complete, 1, absl::InfiniteDuration());
  while (true) {
    TY_ASSIGN_OR_RETURN(const int version,
                        database.Run("migrate", [last](Transaction& transaction) {
                          return ApplyNext(transaction, last);
                        }));
    if (version == 0) return absl::OkStatus();
    spdlog::info("database migrated to version {}", version);
  }
}

}  // namespace trainyard::postgres
