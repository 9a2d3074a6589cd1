#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "storage/audit_store.h"

namespace trainyard {

// Whether the store still has what the file of heads says it had (AuditLogOptions::heads_file): its
// last head, unless that is of an earlier epoch of the yard than `epoch`. kFailedPrecondition: it
// does not, so the database was restored from a backup, or is another yard's. A file that is not
// there says nothing.
absl::Status CheckKeptHeads(const std::string& heads_file, AuditStore& store, int64_t epoch);

}  // namespace trainyard
