#pragma once

#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/postgres/database.h"
#include "storage/records/job.h"

namespace trainyard::postgres {

// Commits submissions in groups, because a commit costs the same for one as for many. Nobody waits
// for company: whoever comes while nothing is being committed commits at once, and one of those who
// came meanwhile commits for all of them.
//
// Thread-safe; no thread of its own. Each submission is durable before it is answered, and answered
// for itself: one that the database refuses does not fail the others.
class Submitter {
 public:
  explicit Submitter(Database& database) : database_(database) {}

  // As JobStore::Submit.
  absl::StatusOr<JobRecord> Submit(const JobRecord& job);

 private:
  struct Submission {
    const JobRecord& submitted;
    JobRecord made;  // with its names, so that a try after a commit in doubt finds what it made
    absl::StatusOr<JobRecord> answer;
    bool done = false;
    bool commits = false;  // for all that wait
  };

  void Commit(const std::vector<Submission*>& group);
  absl::Status Insert(const std::vector<Submission*>& group);

  Database& database_;
  absl::Mutex mu_;
  std::deque<Submission*> waiting_ ABSL_GUARDED_BY(mu_);
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard::postgres
