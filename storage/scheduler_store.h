#pragma once

// What the leader reads and writes. Every write names the leader's epoch and fails with kAborted
// when a newer leader exists: plan again, or stand down.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/records/attempt.h"
#include "storage/records/node.h"
#include "storage/records/node_health.h"

namespace trainyard {

// Priority, highest first, then age: the order in which jobs that wait are served.
bool RunsBefore(const JobRecord& a, const JobRecord& b);

// In that order. Immutable: most of a long queue is shared by one snapshot with the next.
using WaitingJobs = std::vector<std::shared_ptr<const JobRecord>>;

// Every job that is QUEUED or holds slots, `spec` left empty: those that wait may be in either of
// the two.
struct SchedulerSnapshot {
  absl::Time now;  // the store's clock
  std::vector<JobRecord> jobs;
  std::shared_ptr<const WaitingJobs> queue;  // may be null
  std::vector<AttemptRecord> attempts;       // newest attempt of each job that holds slots
  std::vector<NodeRecord> nodes;
};

// Where a reader of changes stands: opaque, the store gives it. Empty: it has read nothing yet.
using ChangePosition = std::string;

// What of a node changes with its heartbeats and matters to the scheduler.
struct LeaseState {
  std::string node;
  int64_t beat = 0;
  NodeReport report;  // `usage` left empty
};

// What differs between a snapshot and an earlier one. Folding the same changes twice changes
// nothing.
struct SnapshotChanges {
  absl::Time now;               // the store's clock
  ChangePosition position;      // to go on from
  bool whole = false;           // this is all that there is: what was known before is forgotten
  std::vector<JobRecord> jobs;  // that wait or hold slots, new or changed, `spec` left empty
  std::vector<AttemptRecord> attempts;  // the newest of those of `jobs` that hold slots
  std::vector<std::string> gone;        // uids of jobs that neither wait nor hold slots any more
  std::vector<NodeRecord> nodes;        // new or changed in more than their lease
  // Of all nodes there are, when they were asked for: a node without one was deleted.
  std::optional<std::vector<LeaseState>> leases;
};

std::vector<const JobRecord*> JobsOf(const SchedulerSnapshot& snapshot);  // all, in any order
std::vector<const JobRecord*> WaitingJobsOf(const SchedulerSnapshot& snapshot);  // in their order

struct Placement {
  std::string job_uid;
  int64_t job_version = 0;  // as seen in the snapshot
  struct Rank {
    std::string node;
    std::vector<int> slots;
  };
  std::vector<Rank> ranks;  // by rank
  Reason reason;
};

struct ReasonUpdate {
  std::string job_uid;
  int64_t job_version = 0;
  Reason reason;
};

struct Suspension {
  std::string job_uid;
  int64_t job_version = 0;
  SuspendCause cause = SuspendCause::kPreempted;
  Reason reason;
  absl::Duration grace;
};

// A node whose lease nobody renewed for too long.
struct LostNode {
  std::string name;
  int64_t beat = 0;  // that stood still: a lease that was renewed since is left alone
};

// A rank that has not begun within the limit for a start (FailStart).
struct FailedStart {
  std::string job_uid;
  int64_t job_version = 0;
  FailureRecord failure;  // names the rank
};

// A loss that a job pays for after all (ChargeLoss).
struct LossCharge {
  std::string job_uid;
  int64_t job_version = 0;
  std::string node;      // that was lost
  int64_t attempt = 0;   // under which
  std::string survivor;  // name of the job that ran there since
};

// A job that is being cancelled, whose lost ranks need not be waited for any longer (EndCancelled).
struct OverdueCancel {
  std::string job_uid;
  int64_t job_version = 0;
};

struct Decisions {
  std::vector<Placement> placements;
  std::vector<Suspension> suspensions;
  std::vector<ReasonUpdate> reasons;  // jobs that go on waiting; only where the reason changed
  std::vector<LostNode> lost_nodes;   // their ranks become lost
  std::vector<NodeCordon> cordons;    // nodes that are not cordoned for their failures yet
  std::vector<FailedStart> failed_starts;
  std::vector<LossCharge> charges;
  std::vector<OverdueCancel> overdue_cancels;
};

// kInvalidArgument: a placement without ranks or slots, a rank's slot twice, a text that is not
// UTF-8.
absl::Status CheckDecisions(const Decisions& decisions);

// "a" of "a/b" and of "a".
absl::string_view ReplicaOf(absl::string_view holder);

struct LeaderLease {
  int64_t epoch = 0;
  absl::Time end;  // on the store's clock: for people
};

// Who leads. The lease is a counter: `beat` changes whenever it is renewed.
struct LeaderRecord {
  std::string holder;  // empty: nobody
  int64_t epoch = 0;
  int64_t beat = 0;
};

// For whoever is not the leader: a node that is reachable is taken for one whose lease holds. How
// old leases are only the leader can tell, by its own clock.
void TrustLeases(SchedulerSnapshot& snapshot);

// Thread-safe.
class SchedulerStore {
 public:
  virtual ~SchedulerStore() = default;

  virtual absl::StatusOr<LeaderRecord> ReadLeader() = 0;

  // Takes or renews leadership for `holder`; a new holder gets a larger epoch, only when nobody
  // leads, or when the lease of the old one still stands at `stale_beat`: where the caller saw it
  // stand still for too long. kFailedPrecondition: someone else leads, named in the message.
  // "REPLICA/PROCESS" follows another process of the same replica at once: that one has ended, or
  // finds out by the epoch at its next write.
  virtual absl::StatusOr<LeaderLease> Lead(const std::string& holder, absl::Duration lease,
                                           std::optional<int64_t> stale_beat) = 0;
  absl::StatusOr<LeaderLease> Lead(const std::string& holder, absl::Duration lease) {
    return Lead(holder, lease, std::nullopt);
  }
  virtual absl::Status StandDown(const std::string& holder) = 0;

  virtual absl::StatusOr<SchedulerSnapshot> ReadSnapshot() = 0;

  // What changed since `since`, which must not be older than kOldestPosition; all there is, with
  // `whole` set, where the store cannot tell, as after a fail-over. A change of steps or
  // checkpoints need not be told. `leases`: read them, too; all of them change every few seconds.
  virtual absl::StatusOr<SnapshotChanges> ReadChanges(const ChangePosition& since, bool leases) = 0;
  static constexpr absl::Duration kOldestPosition = absl::Hours(1);

  // Applies what still holds, in one transaction, and returns how many jobs changed state or lost
  // ranks: a placement whose job version moved or whose slots are no longer free (or node draining
  // or not reachable) is left out, as is a lost node whose lease was renewed; the
  // next pass sees to it; so are a start and a charge of a job whose version moved. A placement
  // makes attempt + 1 that restores from the newest checkpoint, with its ranks and feed items
  // (state change and attempt started). A new reason does not change the version or the feed.
  virtual absl::StatusOr<int> Apply(int64_t leader_epoch, const Decisions& decisions) = 0;
};

}  // namespace trainyard
