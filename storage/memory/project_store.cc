#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

absl::StatusOr<ProjectRecord> MemoryStores::SetProject(const ProjectChange& change) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  ProjectRecord& record = projects_[change.name];
  record.name = change.name;
  const auto set_limit = [](const std::optional<int>& wanted, std::optional<int>& limit) {
    if (wanted.has_value()) limit = *wanted == kNoLimit ? std::nullopt : wanted;
  };
  if (change.unix_user.has_value()) record.unix_user = *change.unix_user;
  set_limit(change.max_slots, record.max_slots);
  set_limit(change.max_jobs, record.max_jobs);
  record.update_time = Now();
  project_changed_[change.name] = ++writes_;
  return record;
}

absl::StatusOr<ProjectRecord> MemoryStores::FindProject(const std::string& name) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  const auto found = projects_.find(name);
  if (found != projects_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("projects/", name, ": nothing was said of it yet"));
}

absl::StatusOr<std::vector<ProjectRecord>> MemoryStores::ListProjects(const std::string& after,
                                                                      int limit) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<ProjectRecord> projects;
  for (auto it = projects_.upper_bound(after); it != projects_.end(); ++it) {
    if (projects.size() == static_cast<size_t>(limit)) break;
    projects.push_back(it->second);
  }
  return projects;
}

}  // namespace trainyard
