#include "storage/postgres/project_store.h"

#include <pqxx/pqxx>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {
namespace {

std::optional<int> NumberIn(const pqxx::field& field) {
  return field.is_null() ? std::nullopt : std::optional<int>(field.as<int>());
}

ProjectRecord ProjectOf(const pqxx::row& row) {
  return {.name = row["name"].as<std::string>(),
          .unix_user = row["unix_user"].as<std::string>(),
          .max_slots = NumberIn(row["max_slots"]),
          .max_jobs = NumberIn(row["max_jobs"]),
          .update_time = absl::FromUnixMicros(row["update_time"].as<int64_t>())};
}

std::optional<std::string> Number(const std::optional<int>& number) {
  return number.has_value() ? std::optional<std::string>(absl::StrCat(*number)) : std::nullopt;
}

}  // namespace

absl::StatusOr<ProjectRecord> PostgresProjectStore::SetProject(const ProjectChange& change) {
  return database_.Run(
      "set project", [&](Transaction& transaction) -> absl::StatusOr<ProjectRecord> {
        return ProjectOf(transaction.Run(
            kSetProject, Params(change.name, change.unix_user, Number(change.max_slots),
                                Number(change.max_jobs)))[0]);
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
