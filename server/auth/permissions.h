#pragma once

// Who may do what. The one table: a new role or a new kind of call gets its row here.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/token_store.h"

namespace trainyard {

enum class Permission {
  kReadServer,    // what server is this, and who am I
  kReadJobs,      // get, list, watch, metrics, logs, checkpoints, explain
  kWriteJobs,     // submit; cancel, pause, resume, resize, delete what one has submitted
  kChangeAnyJob,  // the same with those of others
  kReadNodes,
  kManageProjects,  // as whom they run
  kManageTokens,    // make, list and revoke tokens of the project
  kWriteNodes,      // drain
  kAdmitNodes,      // let them join, and turn them away
  kKeepRecords,     // how long what has ended is kept
  kReadAudit,       // who changed what
  kRunJobs,         // be an agent
};
absl::string_view PermissionName(Permission permission);

inline constexpr char kRoleViewer[] = "viewer";
inline constexpr char kRoleSubmitter[] = "submitter";
inline constexpr char kRoleOperator[] = "operator";
inline constexpr char kRoleAdmin[] = "admin";
inline constexpr char kRoleAgent[] = "agent";

bool IsRole(absl::string_view role);

// Whether the role of the principal allows it, wherever its project is.
bool HasPermission(const Principal& principal, Permission permission);

// kPermissionDenied: "user:ann (role agent) may not write jobs". Nodes and records are the yard's:
// a role in one project does not count for them.
absl::Status CheckPermission(const Principal& principal, Permission permission);

// By what the principal was admitted, for the audit: "tokens/ID of projects/a".
std::string CredentialOf(const Principal& principal);

// Whether the principal may know what `resource` names, "projects/{project}/…" say. kNotFound, as
// of one that does not exist: it is in another project than the principal's. What names no project
// is not looked at, nor "projects/-", all projects.
absl::Status CheckProject(const Principal& principal, absl::string_view resource);

}  // namespace trainyard
