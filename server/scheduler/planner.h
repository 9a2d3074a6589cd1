#pragma once

// Who runs next: a pure function over an immutable snapshot. No clock, no store, no state.
//
// Order: priority, highest first, then age. In this order each job gets its slots or waits. A job
// that waits keeps every free slot that it could use, so nothing behind it can delay it; what it
// could not use (another device, too little memory) is open to those behind. A job in backoff, or
// one that no set of present nodes could hold, keeps nothing.

#include <optional>
#include <string>
#include <vector>

#include "server/scheduler/smaller_gang.h"
#include "server/scheduler/spec_changes.h"
#include "storage/scheduler_store.h"

namespace trainyard {

struct PlannerOptions {
  absl::Duration lease_margin = absl::Seconds(2);   // a node is lost this long after its lease
  absl::Duration orphan_limit = absl::Minutes(10);  // what a worker may live without a lease
  absl::Duration drain_grace = absl::Minutes(5);    // to write a checkpoint on a draining node
  // A running job takes more slots once they have been of use to nobody else for so long,
  absl::Duration grow_after = absl::Minutes(1);
  int most_growths = 4;  // and so often within kGrowthsCountFor.
  // What one pass decides at most, so that it is applied soon; the rest is for the next, at once.
  size_t most_placements = 256;
  size_t most_reasons = 256;
  // How old a job must be for its reason to be written: one that starts before costs its row no
  // write.
  absl::Duration tell_after = absl::ZeroDuration();
};

// How long a lost rank is waited for beyond orphan_limit: the time is counted on the store's clock,
// which jumps by up to half a minute when a stand-by takes over.
inline constexpr absl::Duration kOrphanMargin = absl::Minutes(1);

// Names of jobs ahead in the description of one that waits.
inline constexpr size_t kMostAhead = 10;

// One job that waits, in queue order.
struct QueuedJob {
  std::string uid;
  bool placed = false;   // this pass gives it slots
  bool blocks = false;   // it waits, and keeps slots from jobs behind
  bool awaited = false;  // slots for it are about to come free
  // As it is stored: the same for all jobs of one demand, without counts and names, which change
  // whenever a job starts or ends.
  Reason reason;
  absl::Time earliest_start = absl::InfiniteFuture();  // infinite: not known
};

// One job as it waits at this moment.
struct Description {
  Reason reason;                   // with counts and names
  int queue_position = 0;          // from 1; 0: it does not wait
  std::vector<std::string> ahead;  // names of jobs that keep slots from it, by queue order
  SmallerGang smaller;             // of a job that waits for slots
  bool mixed_starts = false;       // it would start now on slots whatever they compute with
  absl::Time earliest_start = absl::InfiniteFuture();
};

struct Pass {
  Decisions decisions;
  std::vector<QueuedJob> queue;  // every job that waits and was looked at
  // When time alone changes the outcome: end of a backoff, loss of a node, end of a suspension.
  absl::Time next = absl::InfiniteFuture();
  // The running jobs for which there are slots that no waiting job could use; absent: the pass did
  // not look at the whole queue.
  std::optional<std::vector<std::string>> spare;
  // Uids of jobs that wait for slots that are about to come free; absent from a pass that does not
  // look at the whole queue.
  std::vector<std::string> awaited;
  bool suspension_overdue = false;  // ranks have to be killed: the fleet must look again
};

// The definition of what a pass decides: job after job. SchedulerState::Plan finds the same faster.
Pass PlanPass(const SchedulerSnapshot& snapshot, const PlannerOptions& options);

// What the same pass says of the job with `uid`, of which `changes` says what it may have instead.
Description Describe(const SchedulerSnapshot& snapshot, const PlannerOptions& options,
                     const std::string& uid, const SpecChanges& changes = SpecChanges({}, {}));

}  // namespace trainyard
