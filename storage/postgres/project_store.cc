#include "storage/postgres/project_store.h"

#include <pqxx/pqxx>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {
namespace {

ProjectRecord ProjectOf(const pqxx::row& row) {
  return {.name = row["name"].as<std::string>(),
          .unix_user = row["unix_user"].as<std::string>(),
          .update_time = absl::FromUnixMicros(row["update_time"].as<int64_t>())};
}

}  // namespace

absl::StatusOr<ProjectRecord> PostgresProjectStore::SetProject(const ProjectRecord& project) {
  return database_.Run(
      "set project", [&](Transaction& transaction) -> absl::StatusOr<ProjectRecord> {
        return ProjectOf(transaction.Run(kSetProject, Params(project.name, project.unix_user))[0]);
      });
}

absl::StatusOr<ProjectRecord> PostgresProjectStore::FindProject(const std::string& name) {
  return database_.Run(
      "find project",
      [&](Transaction& transaction) -> absl::StatusOr<ProjectRecord> {
        const pqxx::result rows = transaction.Run(kFindProject, Params(name));
        if (rows.empty()) {
          return absl::NotFoundError(
              absl::StrCat("projects/", name, ": nothing was said of it yet"));
        }
        return ProjectOf(rows[0]);
      },
      Access::kStatements);
}

absl::StatusOr<std::vector<ProjectRecord>> PostgresProjectStore::ListProjects(
    const std::string& after, int limit) {
  using Projects = std::vector<ProjectRecord>;
  return database_.Run("list projects", [&](Transaction& transaction) -> absl::StatusOr<Projects> {
    Projects projects;
    for (const pqxx::row& row : transaction.Run(kListProjects, Params(after, limit))) {
      projects.push_back(ProjectOf(row));
    }
    return projects;
  });
}

}  // namespace trainyard::postgres
