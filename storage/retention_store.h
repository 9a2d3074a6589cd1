#pragma once

// How long what has ended is kept, and its end.

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
  int jobs = 0;       // of whose records the last are gone
  int nodes = 0;      // that no lease, no rank that may still run and no slot refers to
  bool more = false;  // call again
};

// Thread-safe.
class RetentionStore {
 public:
  virtual ~RetentionStore() = default;

  virtual absl::StatusOr<Retention> GetRetention() = 0;
  virtual absl::Status SetRetention(const Retention& retention) = 0;

  // Makes room for the jobs of this month and the next ones. What is submitted without it is
  // stored all the same, and put in its place here.
  virtual absl::Status MakeMonths() = 0;

  // One bounded step. Jobs go by the month in which they were created, all together: once each of
  // them has ended, and for longer than Retention says, and the month is over for as long. A month
  // with a live job stays whole. Records go, with feed and metrics; checkpoint files stay.
  // Of several callers at once one does the work. kUnavailable: somebody reads or writes what is to
  // go; call again later.
  virtual absl::StatusOr<Aged> Age() = 0;
};

}  // namespace trainyard
