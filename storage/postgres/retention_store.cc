#include "storage/postgres/retention_store.h"

#include <pqxx/pqxx>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {
namespace {

// Tables that are partitioned by the month of their job's creation, and the column with that month.
// Each has a partition NAME_default for rows that come before the partition of their month.
struct MonthlyTable {
  const char* name;
  const char* key;
};
constexpr MonthlyTable kMonthlyTables[] = {{"ended_jobs", "create_time"},
                                           {"feed", "month"},
                                           {"metric_heads", "month"},
                                           {"metric_chunks", "month"}};

constexpr char kShortLockTimeout[] = "SET LOCAL lock_timeout = '200ms'";
constexpr int kPiece = 200;  // jobs

bool IsMine(Transaction& transaction) {
  return transaction.Run(kTryRetention, Params())[0][0].as<bool>();
}

Retention ReadRetention(Transaction& transaction) {
  const pqxx::result rows = transaction.Run(kGetRetention, Params());
  return {.ended_jobs = absl::Microseconds(rows[0][0].as<int64_t>()),
          .gone_nodes = absl::Microseconds(rows[0][1].as<int64_t>())};
}

// Removes the month if it is over, and returns whether it did. This is checked twice: completely
// while others work, then, under locks that keep them out, only for what changed since.
bool Drop(Transaction& transaction, const std::string& month, absl::Duration keep) {
  const pqxx::result seen = transaction.Run(kMonthIsOver, Params(month, keep));
  if (!seen[0]["over"].as<bool>()) return false;
  const std::string parents =
      absl::StrJoin(kMonthlyTables, ", ",
                    [](std::string* out, const MonthlyTable& table) { out->append(table.name); });
  transaction.RunScript(absl::StrCat("LOCK TABLE ", parents, " IN ACCESS EXCLUSIVE MODE"));
  const std::string since = seen[0]["since"].as<std::string>();
  if (transaction.Run(kMonthChanged, Params(month, since))[0][0].as<bool>()) return false;
  std::string script =
      absl::StrCat("ALTER TABLE ended_jobs DETACH PARTITION ended_jobs_", month,
                   "; ALTER TABLE ended_jobs_", month, " RENAME TO aged_jobs_", month);
  for (const MonthlyTable& table : kMonthlyTables) {  // that of ended_jobs has another name now
    absl::StrAppend(&script, "; DROP TABLE IF EXISTS ", table.name, "_", month);
  }
  transaction.RunScript(script);
  return true;
}

// Removes a piece of what is left of the jobs of a detached month.
void RemovePiece(Transaction& transaction, const std::string& month, Aged& aged) {
  const std::string sql = absl::StrReplaceAll(kRemoveRecords.text, {{"{month}", month}});
  aged.jobs = transaction.RunText(sql, Params(kPiece))[0][0].as<int>();
  aged.more = true;
  if (aged.jobs > 0) return;
  transaction.RunScript(absl::StrCat("DROP TABLE aged_jobs_", month));
  aged.months = 1;
}

}  // namespace

absl::StatusOr<Retention> PostgresRetentionStore::GetRetention() {
  return database_.Run("retention", [](Transaction& transaction) -> absl::StatusOr<Retention> {
    return ReadRetention(transaction);
  });
}

absl::Status PostgresRetentionStore::SetRetention(const Retention& retention) {
  TY_RETURN_IF_ERROR(CheckRetention(retention));
  return database_.Run("retention", [&](Transaction& transaction) -> absl::Status {
    transaction.Run(kSetRetention, Params(retention.ended_jobs, retention.gone_nodes));
    return absl::OkStatus();
  });
}

absl::Status PostgresRetentionStore::MakeMonthlyPartitions() {
  return database_.Run("make months", [](Transaction& transaction) -> absl::Status {
    if (!IsMine(transaction)) return absl::OkStatus();
    transaction.RunText(kShortLockTimeout, Params());
    for (const pqxx::row& row : transaction.Run(kWantedMonths, Params())) {
      const std::string month = row[0].as<std::string>();
      for (const MonthlyTable& table : kMonthlyTables) {
        transaction.Run(kMakeMonth, Params(table.name, table.key, month));
      }
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<Aged> PostgresRetentionStore::Age() {
  return database_.Run("retention", [](Transaction& transaction) -> absl::StatusOr<Aged> {
    Aged aged;
    if (!IsMine(transaction)) return aged;
    transaction.RunText(kShortLockTimeout, Params());
    const pqxx::result detached = transaction.Run(kDetachedMonth, Params());
    if (!detached.empty()) {
      RemovePiece(transaction, detached[0][0].as<std::string>(), aged);
      return aged;
    }
    transaction.Run(kForgetDeletedJobs, Params());
    const Retention retention = ReadRetention(transaction);
    for (const pqxx::row& row : transaction.Run(kOldMonths, Params(retention.ended_jobs))) {
      aged.more = Drop(transaction, row[0].as<std::string>(), retention.ended_jobs);
      if (aged.more) return aged;
    }
    aged.nodes =
        static_cast<int>(transaction.Run(kForgetNodes, Params(retention.gone_nodes)).size());
    aged.more = aged.nodes > 0;
    return aged;
  });
}

}  // namespace trainyard::postgres
