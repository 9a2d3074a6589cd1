#include <algorithm>
#include <tuple>

#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

absl::Status MemoryStores::AppendAudit(const std::vector<AuditEntry>& entries) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  for (const AuditEntry& entry : entries)
    audit_.emplace(std::pair(entry.chain, entry.sequence), entry);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AuditEntry>> MemoryStores::ListAudit(const AuditQuery& query,
                                                                int limit) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<AuditEntry> entries;
  const auto place = std::pair(query.chain, query.sequence);
  for (const auto& [at, entry] : audit_) {
    const bool wanted = query.by_chain
                            ? at > place
                            : (query.principal.empty() || entry.principal == query.principal) &&
                                  std::pair(entry.time, at) < std::pair(query.time, place);
    if (wanted) entries.push_back(entry);
  }
  if (!query.by_chain) {
    std::sort(entries.begin(), entries.end(), [](const AuditEntry& a, const AuditEntry& b) {
      return std::tie(a.time, a.chain, a.sequence) > std::tie(b.time, b.chain, b.sequence);
    });
  }
  if (entries.size() > static_cast<size_t>(limit)) entries.resize(limit);
  return entries;
}

}  // namespace trainyard
