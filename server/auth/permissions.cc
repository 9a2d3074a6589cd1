#include "server/auth/permissions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/enum_names.h"
#include "storage/base/printable.h"

namespace trainyard {
namespace {

// From those that may least to those that may most: each may what the one before it may.
constexpr const char* kRolesOfPeople[] = {kRoleViewer, kRoleSubmitter, kRoleOperator, kRoleAdmin};

struct Grant {
  absl::string_view from;  // the first of these roles that may
  Permission permission;
  bool of_yard = false;  // it concerns all projects
};

// No user's token is one of an agent. An admin's lets machines in and turns nodes away: only so,
// and seen by everybody, does it take over a node.
const Grant kGrants[] = {
    {kRoleViewer, Permission::kReadServer},          {kRoleViewer, Permission::kReadJobs},
    {kRoleViewer, Permission::kReadNodes},           {kRoleSubmitter, Permission::kWriteJobs},
    {kRoleOperator, Permission::kChangeAnyJob},      {kRoleOperator, Permission::kWriteNodes, true},
    {kRoleAdmin, Permission::kManageTokens},         {kRoleAdmin, Permission::kAdmitNodes, true},
    {kRoleAdmin, Permission::kManageProjects, true}, {kRoleAdmin, Permission::kKeepRecords, true},
    {kRoleAdmin, Permission::kReadAudit, true}};
constexpr Permission kOfAgents[] = {Permission::kReadServer, Permission::kRunJobs};

constexpr std::pair<Permission, const char*> kPermissionNames[] = {
    {Permission::kReadServer, "read server information"},
    {Permission::kReadJobs, "read jobs"},
    {Permission::kWriteJobs, "write jobs"},
    {Permission::kChangeAnyJob, "change jobs of others"},
    {Permission::kReadNodes, "read nodes"},
    {Permission::kManageTokens, "make, list or revoke tokens"},
    {Permission::kManageProjects, "set how projects run and what they may use"},
    {Permission::kWriteNodes, "drain nodes"},
    {Permission::kAdmitNodes, "let nodes join, or turn them away"},
    {Permission::kKeepRecords, "say how long records are kept"},
    {Permission::kReadAudit, "read the audit"},
    {Permission::kRunJobs, "connect as an agent"},
};

// How much a role may; -1: it is none of people's.
std::ptrdiff_t RankOf(absl::string_view role) {
  const auto* const found = std::find(std::begin(kRolesOfPeople), std::end(kRolesOfPeople), role);
  return found == std::end(kRolesOfPeople) ? -1 : found - std::begin(kRolesOfPeople);
}

const Grant* GrantOf(Permission permission) {
  for (const Grant& grant : kGrants) {
    if (grant.permission == permission) return &grant;
  }
  return nullptr;
}

}  // namespace

absl::string_view PermissionName(Permission permission) {
  return NameIn(kPermissionNames, permission);
}

bool IsRole(absl::string_view role) { return role == kRoleAgent || RankOf(role) >= 0; }

bool HasPermission(const Principal& principal, Permission permission) {
  if (principal.role == kRoleAgent) {
    return std::count(std::begin(kOfAgents), std::end(kOfAgents), permission) > 0;
  }
  const Grant* const grant = GrantOf(permission);
  return grant != nullptr && RankOf(principal.role) >= RankOf(grant->from);
}

absl::Status CheckPermission(const Principal& principal, Permission permission) {
  if (!HasPermission(principal, permission)) {
    return absl::PermissionDeniedError(absl::StrCat(principal.name, " (role ", principal.role,
                                                    ") may not ", PermissionName(permission)));
  }
  const Grant* const grant = GrantOf(permission);
  if (principal.project.empty() || grant == nullptr || !grant->of_yard) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      principal.name, " (role ", principal.role, " of projects/", principal.project, ") may not ",
      PermissionName(permission), ": that takes the role in the whole yard"));
}

std::string CredentialOf(const Principal& principal) {
  return absl::StrCat(principal.credential, principal.project.empty() ? "" : " of projects/",
                      principal.project);
}

absl::Status CheckProject(const Principal& principal, absl::string_view resource) {
  if (principal.project.empty() || !absl::ConsumePrefix(&resource, "projects/")) {
    return absl::OkStatus();
  }
  const absl::string_view project = resource.substr(0, resource.find('/'));
  if (project == principal.project || project == "-") return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("projects/", EscapedLine(project.substr(0, 100)), ": no such project"));
}

}  // namespace trainyard
