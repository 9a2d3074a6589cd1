#pragma once

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/postgres/database.h"
#include "storage/records/job.h"

namespace trainyard::postgres {

// Commits submissions in groups, because a commit costs the same for one as for many. Nobody waits
// for a group to fill: a caller that comes while nothing is being committed commits at once, and
// one of those that come during a commit then commits for all of them.
//
// Thread-safe; no thread of its own. Each submission is durable before it is answered and gets its
// own answer: one that the database refuses does not make the others fail.
class Submitter {
 public:
  explicit Submitter(Database& database) : database_(database) {}

  // As JobStore::SubmitMany. A group holds all of one caller's jobs, up to kLargestGroup of them,
  // and those of other callers as long as there is room.
  std::vector<absl::StatusOr<JobRecord>> Submit(absl::Span<const JobRecord> jobs);

 private:
  struct Submission {
    const JobRecord* submitted;
    // Has uid and job id, so that a try after a commit in doubt finds what the first made.
    JobRecord made;
    absl::StatusOr<JobRecord>* answer;
  };
  struct Caller {
    std::vector<Submission> submissions;  // at most kLargestGroup
    bool done = false;
    bool commits = false;  // this caller commits for all that wait
  };
  using Group = std::vector<Submission*>;

  void Submit(Caller& own);
  void Commit(absl::Span<Submission* const> group);
  absl::Status Insert(absl::Span<Submission* const> group);
  static void InsertIn(Transaction& transaction, absl::Span<Submission* const> group);
  // Likewise, but for those that their projects may not have: they are answered so.
  static absl::Status InsertWithinLimits(Transaction& transaction,
                                         absl::Span<Submission* const> group);
  // Which projects may have only so many jobs, as of a second ago.
  absl::Status LearnLimited();

  Database& database_;
  absl::Mutex mu_;
  std::deque<Caller*> waiting_ ABSL_GUARDED_BY(mu_);
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::string> limited_;  // projects; used by the one who commits
  absl::Duration limited_read_ = -absl::InfiniteDuration();
};

}  // namespace trainyard::postgres
