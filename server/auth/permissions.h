#pragma once

// Who may do what. The one table: a new role or a new kind of call gets its row here.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/token_store.h"

namespace trainyard {

enum class Permission {
  kReadServer,  // what server is this
  kReadJobs,    // get, list, watch, metrics, logs, checkpoints, explain
  kWriteJobs,   // submit, cancel, pause, resume, delete
  kReadNodes,
  kWriteNodes,   // drain
  kAdmitNodes,   // let them join, and turn them away
  kKeepRecords,  // how long what has ended is kept
  kRunJobs,      // be an agent
};
absl::string_view PermissionName(Permission permission);

inline constexpr char kRoleAdmin[] = "admin";
inline constexpr char kRoleAgent[] = "agent";

bool IsRole(absl::string_view role);

// kPermissionDenied: "user:ann (role agent) may not write jobs".
absl::Status CheckPermission(const Principal& principal, Permission permission);

}  // namespace trainyard
