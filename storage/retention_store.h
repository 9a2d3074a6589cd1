#pragma once

// How long ended jobs and lost nodes are kept, and their removal.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

struct Retention {
  absl::Duration ended_jobs = absl::Hours(365 * 24);  // since the job's end
  absl::Duration gone_nodes = absl::Hours(30 * 24);   // since the end of the node's lease
};

// Between an hour and a hundred years, else kInvalidArgument.
absl::Status CheckRetention(const Retention& retention);

// What one call of Age removed.
struct Aged {
  int months = 0;
  int jobs = 0;   // whose last records were removed
  int nodes = 0;  // forgotten: long without a lease, and without ranks that are ASSIGNED or RUNNING
  bool more = false;  // call again
};

// Thread-safe.
class RetentionStore {
 public:
  virtual ~RetentionStore() = default;

  virtual absl::StatusOr<Retention> GetRetention() = 0;
  virtual absl::Status SetRetention(const Retention& retention) = 0;

  // Makes the partitions for jobs that are created in this month and the next ones. Jobs that were
  // submitted before their partition existed are stored all the same, and moved into it here.
  virtual absl::Status MakeMonthlyPartitions() = 0;

  // Removes what is older than Retention allows, in one bounded step. Jobs are removed by the month
  // in which they were created, all together, once the month has been over, and each of its jobs
  // has been ended, for longer than Retention says. A month with a live job stays whole. Job
  // records are removed with feed and metrics; checkpoint files stay. Of several callers at once
  // one does the work. kUnavailable: somebody reads or writes what is to be removed; call again
  // later.
  virtual absl::StatusOr<Aged> Age() = 0;
};

}  // namespace trainyard
