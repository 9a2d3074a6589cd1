#include "server/api/project_calls.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "storage/base/field_error.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

v1::Project ToProto(const ProjectRecord& project) {
  v1::Project out;
  out.set_name(absl::StrCat("projects/", project.name));
  out.set_unix_user(project.unix_user);
  if (project.max_slots.has_value()) out.set_max_slots(*project.max_slots);
  if (project.max_jobs.has_value()) out.set_max_jobs(*project.max_jobs);
  SetTimestamp(project.update_time, *out.mutable_update_time());
  return out;
}

std::string Told(const std::optional<int>& limit) {
  return limit.has_value() ? absl::StrCat(*limit) : "none";
}

absl::Status TakeLimit(const char* field, int32_t wanted, const std::optional<int>& before,
                       std::optional<int>& limit, std::string& told) {
  if (wanted < kNoLimit) return FieldError(field, wanted, "a number, or -1 for no limit");
  limit = wanted;
  absl::StrAppend(&told, told.empty() ? "" : ", ", field, " ", Told(before), " -> ",
                  Told(wanted == kNoLimit ? std::nullopt : limit));
  return absl::OkStatus();
}

}  // namespace

absl::Status SetProject(ProjectStore& store, const v1::SetProjectRequest& request,
                        v1::Project* response, std::string& told) {
  ProjectChange change;
  TY_ASSIGN_OR_RETURN(change.name, ParseProjectName("name", request.name(), false));
  absl::StatusOr<ProjectRecord> before = store.FindProject(change.name);
  if (absl::IsNotFound(before.status())) before = ProjectRecord{};
  TY_RETURN_IF_ERROR(before.status());
  if (request.has_unix_user()) {
    told = absl::StrCat("unix_user '", before->unix_user, "' -> '",
                        EscapedLine(request.unix_user().substr(0, 200)), "'");
    change.unix_user = request.unix_user();
    if (!request.unix_user().empty()) {
      TY_RETURN_IF_ERROR(Annotate(CheckUnixUser(request.unix_user()), "unix_user"));
    }
  }
  if (request.has_max_slots()) {
    TY_RETURN_IF_ERROR(
        TakeLimit("max_slots", request.max_slots(), before->max_slots, change.max_slots, told));
  }
  if (request.has_max_jobs()) {
    TY_RETURN_IF_ERROR(
        TakeLimit("max_jobs", request.max_jobs(), before->max_jobs, change.max_jobs, told));
  }
  TY_ASSIGN_OR_RETURN(const ProjectRecord project, store.SetProject(change));
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
