#pragma once

#include "storage/audit_store.h"
#include "storage/postgres/database.h"

namespace trainyard::postgres {

void AppendEntries(Transaction& transaction, const std::vector<AuditEntry>& entries);

class PostgresAuditStore : public AuditStore {
 public:
  explicit PostgresAuditStore(Database& database) : database_(database) {}

  absl::Status AppendAudit(const std::vector<AuditEntry>& entries) override;
  absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditQuery& query, int limit) override;

 private:
  Database& database_;
};

}  // namespace trainyard::postgres
