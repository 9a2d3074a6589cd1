#pragma once

#include "storage/postgres/database.h"
#include "storage/project_store.h"

namespace trainyard::postgres {

class PostgresProjectStore : public ProjectStore {
 public:
  explicit PostgresProjectStore(Database& database) : database_(database) {}

  absl::StatusOr<ProjectRecord> SetProject(const ProjectChange& change) override;
  absl::StatusOr<ProjectRecord> FindProject(const std::string& name) override;
  absl::StatusOr<std::vector<ProjectRecord>> ListProjects(const std::string& after,
                                                          int limit) override;

 private:
  Database& database_;
};

}  // namespace trainyard::postgres
