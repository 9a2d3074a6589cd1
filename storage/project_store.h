#pragma once

#include <optional>
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
  std::optional<int> max_slots;  // that its jobs hold together; none: as many as there are
  std::optional<int> max_jobs;   // that have not ended; none: any number
  absl::Time update_time;
};

// What an admin says of a project; what is absent stays as it is.
struct ProjectChange {
  std::string name;
  std::optional<std::string> unix_user;
  std::optional<int> max_slots, max_jobs;  // kNoLimit: none
};
inline constexpr int kNoLimit = -1;

// kInvalidArgument, without the field: no name of a user that nodes might know, or the name of one
// that may everything.
absl::Status CheckUnixUser(const std::string& name);

// kResourceExhausted: so many jobs of the project have not ended, and it may not have more.
absl::Status TooManyJobs(const std::string& project, int max_jobs);

// Thread-safe. Every method is one transaction.
class ProjectStore {
 public:
  virtual ~ProjectStore() = default;

  // Makes the project's record or changes it; the time is set here. Idempotent.
  virtual absl::StatusOr<ProjectRecord> SetProject(const ProjectChange& change) = 0;

  // kNotFound: nobody has said anything of it.
  virtual absl::StatusOr<ProjectRecord> FindProject(const std::string& name) = 0;

  // At most `limit` of them, by name, from the one behind `after` on.
  virtual absl::StatusOr<std::vector<ProjectRecord>> ListProjects(const std::string& after,
                                                                  int limit) = 0;
};

}  // namespace trainyard
