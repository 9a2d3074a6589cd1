#pragma once

// Where the facts of a job's data come from, by what an admin has said of its project.

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/sizing/size_job.h"
#include "storage/project_store.h"
#include "storage/records/job.h"
#include "trainyard/v1/facts.pb.h"

namespace trainyard {

// Thread-safe.
class ProjectFacts {
 public:
  // As Fleet::Look.
  using Look = std::function<absl::StatusOr<v1::DataFacts>(const v1::LookRequest&, absl::Time,
                                                           bool& unseen)>;

  // The store outlives it. Without `look` no node is asked.
  ProjectFacts(ProjectStore& store, Look look) : store_(store), look_(std::move(look)) {}

  // Of a project whose jobs run as a user of their own, a node's agent looks as that user, since
  // the server's own may read more than the caller. If no node can look now, or sees the files, or
  // is done with them in time, the spec has to declare the facts, and `looked` is what came of
  // looking: kUnavailable if another try may help.
  absl::StatusOr<FactsFrom> Of(const JobRecord& job, absl::Time until, absl::Status& looked);

 private:
  struct Known {
    std::string unix_user;
    absl::Duration read;  // on Clock::SinceBoot
  };
  struct Found {
    plan::DataFacts facts;
    absl::Duration looked;
  };
  absl::StatusOr<std::string> UserOf(const std::string& project);

  ProjectStore& store_;
  const Look look_;
  absl::Mutex mu_;
  // As of a moment ago: by project; by user, data and whatever else says how they are read.
  std::map<std::string, Known> users_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Found> found_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
