#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

// What an admin has said of a project. Jobs may be in projects of which nobody has said anything.
struct ProjectRecord {
  std::string name;
  // As whom the ranks of its jobs run on nodes, by the name that nodes know; empty: as the agent.
  std::string unix_user;
  absl::Time update_time;
};

// kInvalidArgument, without the field: no name of a user that nodes might know, or the name of one
// that may everything.
absl::Status CheckUnixUser(const std::string& name);

// Thread-safe. Every method is one transaction.
class ProjectStore {
 public:
  virtual ~ProjectStore() = default;

  // Makes the project's record or changes it; the time is set here. Idempotent.
  virtual absl::StatusOr<ProjectRecord> SetProject(const ProjectRecord& project) = 0;

  // kNotFound: nobody has said anything of it.
  virtual absl::StatusOr<ProjectRecord> FindProject(const std::string& name) = 0;

  // At most `limit` of them, by name, from the one behind `after` on.
  virtual absl::StatusOr<std::vector<ProjectRecord>> ListProjects(const std::string& after,
                                                                  int limit) = 0;
};

}  // namespace trainyard
