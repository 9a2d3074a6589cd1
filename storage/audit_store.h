#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/audit_chain.h"

namespace trainyard {

// Which entries of the audit are read next.
struct AuditQuery {
  // In the order of chains and of each chain's entries, for whoever verifies them; else the newest
  // first.
  bool by_chain = false;
  std::string principal;  // of this one alone, if they are read by time; empty: of all
  // The entry before them; none: from the beginning.
  std::string chain;
  int64_t sequence = 0;
  absl::Time time = absl::InfiniteFuture();
};

// Who changed what. Entries are added, and never changed or removed.
class AuditStore {
 public:
  virtual ~AuditStore() = default;
  // Adds them all, or none. Idempotent: an entry that is there already stays.
  virtual absl::Status AppendAudit(const std::vector<AuditEntry>& entries) = 0;
  virtual absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditQuery& query, int limit) = 0;
};

}  // namespace trainyard
