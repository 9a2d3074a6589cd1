#include "server/auth/permissions.h"

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

struct Grant {
  absl::string_view role;
  Permission permission;
};

// An admin may not pose as an agent: whoever steals a user's token still takes over no node.
const Grant kGrants[] = {
    {kRoleAdmin, Permission::kReadServer}, {kRoleAdmin, Permission::kReadJobs},
    {kRoleAdmin, Permission::kWriteJobs},  {kRoleAdmin, Permission::kReadNodes},
    {kRoleAdmin, Permission::kWriteNodes}, {kRoleAdmin, Permission::kKeepRecords},
    {kRoleAgent, Permission::kReadServer}, {kRoleAgent, Permission::kRunJobs},
};

}  // namespace

absl::string_view PermissionName(Permission permission) {
  switch (permission) {
    case Permission::kReadServer:
      return "read server information";
    case Permission::kReadJobs:
      return "read jobs";
    case Permission::kWriteJobs:
      return "write jobs";
    case Permission::kReadNodes:
      return "read nodes";
    case Permission::kWriteNodes:
      return "drain nodes";
    case Permission::kKeepRecords:
      return "say how long records are kept";
    case Permission::kRunJobs:
      return "connect as an agent";
  }
  return "unknown";
}

bool IsRole(absl::string_view role) { return role == kRoleAdmin || role == kRoleAgent; }

absl::Status CheckPermission(const Principal& principal, Permission permission) {
  for (const Grant& grant : kGrants) {
    if (grant.role == principal.role && grant.permission == permission) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(principal.name, " (role ", principal.role,
                                                  ") may not ", PermissionName(permission)));
}

}  // namespace trainyard
