#pragma once

// Who runs next: a pure function over an immutable snapshot. No clock, no store, no state.
//
// Order: priority, highest first, then age. In this order each job gets its slots or waits. A job
// that waits keeps every free slot that it could use, so nothing behind it can delay it; what it
// could not use (another device, too little memory) is open to those behind. A job in backoff, or
// one that no set of present nodes could hold, keeps nothing.

#include <string>
#include <vector>

#include "storage/scheduler_store.h"

namespace trainyard {

struct PlannerOptions {
  absl::Duration lease_margin = absl::Seconds(2);  // a node is lost this long after its lease
  absl::Duration drain_grace = absl::Minutes(5);   // to write a checkpoint on a draining node
};

// More names would make a long queue cost its square.
inline constexpr size_t kMostAhead = 10;

// One job that waits, in queue order.
struct QueuedJob {
  std::string uid;
  std::string name;     // projects/{project}/jobs/{job}
  bool placed = false;  // this pass gives it slots
  Reason reason;
  std::vector<std::string>
      ahead;  // jobs that keep slots from it, by queue order; at most kMostAhead
  absl::Time earliest_start = absl::InfiniteFuture();  // infinite: not known
};

struct Pass {
  Decisions decisions;
  std::vector<QueuedJob> queue;
  // When time alone changes the outcome: end of a backoff, loss of a node, end of a suspension.
  absl::Time next = absl::InfiniteFuture();
  bool suspension_overdue = false;  // ranks have to be killed: the fleet must look again
};

Pass PlanPass(const SchedulerSnapshot& snapshot, const PlannerOptions& options);

std::string JobNameOf(const JobRecord& job);

}  // namespace trainyard
