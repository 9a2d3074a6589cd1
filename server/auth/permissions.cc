#include "server/auth/permissions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/enum_names.h"

namespace trainyard {
namespace {

struct Grant {
  absl::string_view role;
  Permission permission;
};

// No user's token is one of an agent. An admin's lets machines in and turns nodes away: only so,
// and seen by everybody, does it take over a node.
const Grant kGrants[] = {
    {kRoleAdmin, Permission::kReadServer},  {kRoleAdmin, Permission::kReadJobs},
    {kRoleAdmin, Permission::kWriteJobs},   {kRoleAdmin, Permission::kReadNodes},
    {kRoleAdmin, Permission::kWriteNodes},  {kRoleAdmin, Permission::kAdmitNodes},
    {kRoleAdmin, Permission::kKeepRecords}, {kRoleAgent, Permission::kReadServer},
    {kRoleAgent, Permission::kRunJobs},
};

constexpr std::pair<Permission, const char*> kPermissionNames[] = {
    {Permission::kReadServer, "read server information"},
    {Permission::kReadJobs, "read jobs"},
    {Permission::kWriteJobs, "write jobs"},
    {Permission::kReadNodes, "read nodes"},
    {Permission::kWriteNodes, "drain nodes"},
    {Permission::kAdmitNodes, "let nodes join, or turn them away"},
    {Permission::kKeepRecords, "say how long records are kept"},
    {Permission::kRunJobs, "connect as an agent"},
};

}  // namespace

absl::string_view PermissionName(Permission permission) {
  return NameIn(kPermissionNames, permission);
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
