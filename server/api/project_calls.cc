#include "server/api/project_calls.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

v1::Project ToProto(const ProjectRecord& project) {
  v1::Project out;
  out.set_name(absl::StrCat("projects/", project.name));
  out.set_unix_user(project.unix_user);
  SetTimestamp(project.update_time, *out.mutable_update_time());
  return out;
}

}  // namespace

absl::Status SetProject(ProjectStore& store, const v1::SetProjectRequest& request,
                        v1::Project* response, std::string& change) {
  TY_ASSIGN_OR_RETURN(const std::string name, ParseProjectName("name", request.name(), false));
  absl::StatusOr<ProjectRecord> found = store.FindProject(name);
  if (absl::IsNotFound(found.status())) found = ProjectRecord{.name = name};
  TY_RETURN_IF_ERROR(found.status());
  if (request.has_unix_user()) {
    change = absl::StrCat("unix_user '", found->unix_user, "' -> '",
                          EscapedLine(request.unix_user().substr(0, 200)), "'");
    found->unix_user = request.unix_user();
    if (!found->unix_user.empty()) {
      TY_RETURN_IF_ERROR(Annotate(CheckUnixUser(found->unix_user), "unix_user"));
    }
  }
  TY_ASSIGN_OR_RETURN(const ProjectRecord project, store.SetProject(*found));
  *response = ToProto(project);
  return absl::OkStatus();
}

absl::Status ListProjects(ProjectStore& store, const v1::ListProjectsRequest& request,
                          v1::ListProjectsResponse* response) {
  TY_ASSIGN_OR_RETURN(const int page_size, CheckPageSize(request.page_size(), 100, 1000));
  const std::string question = "projects";
  TY_ASSIGN_OR_RETURN(const std::string after, ReadPageToken(question, request.page_token()));
  TY_ASSIGN_OR_RETURN(const std::vector<ProjectRecord> projects,
                      store.ListProjects(after, page_size));
  for (const ProjectRecord& project : projects) *response->add_projects() = ToProto(project);
  if (static_cast<int>(projects.size()) == page_size) {
    response->set_next_page_token(MakePageToken(question, projects.back().name));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
