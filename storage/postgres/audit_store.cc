#include "storage/postgres/audit_store.h"

#include <algorithm>
#include <pqxx/pqxx>

#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {
namespace {

// Of a query from the newest on: PostgreSQL knows times up to here.
const absl::Time kLatest = absl::FromUnixSeconds(100'000'000'000);

AuditEntry EntryOf(const pqxx::row& row) {
  return {.chain = row["chain"].as<std::string>(),
          .sequence = row["sequence"].as<int64_t>(),
          .time = absl::FromUnixMicros(row["at"].as<int64_t>()),
          .principal = row["principal"].as<std::string>(),
          .credential = row["credential"].as<std::string>(),
          .source = row["source"].as<std::string>(),
          .method = row["method"].as<std::string>(),
          .resource = row["resource"].as<std::string>(),
          .outcome = row["outcome"].as<std::string>(),
          .detail = row["detail"].as<std::string>(),
          .count = row["count"].as<int64_t>(),
          .digest = row["digest"].as<std::string>()};
}

}  // namespace

void AppendEntries(Transaction& transaction, const std::vector<AuditEntry>& entries) {
  std::vector<std::string> chains, principals, credentials, sources, methods, resources, outcomes,
      details, digests;
  std::vector<int64_t> sequences, times, counts;
  for (const AuditEntry& entry : entries) {
    chains.push_back(entry.chain);
    sequences.push_back(entry.sequence);
    times.push_back(absl::ToUnixMicros(entry.time));
    principals.push_back(entry.principal);
    credentials.push_back(entry.credential);
    sources.push_back(entry.source);
    methods.push_back(entry.method);
    resources.push_back(entry.resource);
    outcomes.push_back(entry.outcome);
    details.push_back(entry.detail);
    counts.push_back(entry.count);
    digests.push_back(entry.digest);
  }
  transaction.Run(kAppendAudit, Params(chains, sequences, times, principals, credentials, sources,
                                       methods, resources, outcomes, details, counts, digests));
}

absl::Status PostgresAuditStore::AppendAudit(const std::vector<AuditEntry>& entries) {
  return database_.Run("append to the audit", [&](Transaction& transaction) -> absl::Status {
    AppendEntries(transaction, entries);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<AuditEntry>> PostgresAuditStore::ListAudit(const AuditQuery& query,
                                                                      int limit) {
  using Entries = std::vector<AuditEntry>;
  return database_.Run("list the audit", [&](Transaction& transaction) -> absl::StatusOr<Entries> {
    const absl::Time before = std::min(query.time, kLatest);
    const pqxx::result rows =
        query.by_chain
            ? transaction.Run(kListAuditByChain, Params(query.chain, query.sequence, limit))
        : query.principal.empty()
            ? transaction.Run(kListAuditByTime, Params(before, query.chain, query.sequence, limit))
            : transaction.Run(kListAuditOfPrincipal,
                              Params(before, query.chain, query.sequence, limit, query.principal));
    Entries entries;
    for (const pqxx::row& row : rows) entries.push_back(EntryOf(row));
    return entries;
  });
}

}  // namespace trainyard::postgres
