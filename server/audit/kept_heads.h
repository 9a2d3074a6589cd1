#pragma once

#include <string>

#include "absl/status/status.h"
#include "storage/audit_store.h"

namespace trainyard {

// Whether the store still has what the file of heads says it had (AuditLogOptions::heads_file): the
// last head that was kept since the yard was last restored. kFailedPrecondition: it does not, so
// the database was restored from a backup, or is another yard's. A file that is not there says
// nothing.
absl::Status CheckKeptHeads(const std::string& heads_file, AuditStore& store);

}  // namespace trainyard
