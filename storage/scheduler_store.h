#pragma once

// What the leader reads and writes. Every write names the leader's epoch and fails with kAborted
// when a newer leader exists: plan again, or stand down.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

// Waiting jobs in the order of RunsBefore. Immutable: consecutive snapshots share most of a long
// queue.
using WaitingJobs = std::vector<std::shared_ptr<const JobRecord>>;

// Of projects: how many slots their jobs may hold together.
using SlotLimits = std::map<std::string, int>;

// Every job that is QUEUED or holds slots, with an empty `spec`. A waiting job is either in `jobs`
// or in `queue`.
struct SchedulerSnapshot {
  absl::Time now;  // the store's clock
  std::vector<JobRecord> jobs;
  std::shared_ptr<const WaitingJobs> queue;  // may be null
  std::vector<AttemptRecord> attempts;       // newest attempt of each job that holds slots
  std::vector<NodeRecord> nodes;
  SlotLimits slot_limits;
};

// How far a reader of changes has read: opaque, made by the store. Empty: it has read nothing yet.
using ChangePosition = std::string;

// The part of a node that changes with its heartbeats and matters to the scheduler.
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
  std::vector<AttemptRecord> attempts;  // the newest of each of `jobs` that holds slots
  std::vector<std::string> gone;        // uids of jobs that neither wait nor hold slots any more
  std::vector<NodeRecord> nodes;        // new or changed in more than their lease
  // Of projects, new or changed; without a number: they have no limit.
  std::vector<std::pair<std::string, std::optional<int>>> slot_limits;
  // The leases of all nodes, if they were asked for: a node without one was deleted.
  std::optional<std::vector<LeaseState>> leases;
};

std::vector<const JobRecord*> JobsOf(const SchedulerSnapshot& snapshot);  // all, in any order
std::vector<const JobRecord*> WaitingJobsOf(const SchedulerSnapshot& snapshot);  // in their order

struct Placement {
  std::string job_uid;
  int64_t job_version = 0;  // as seen in the snapshot
  using Rank = RankSlots;
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

// Another number of slots for a RUNNING job (ResizeJob): its gang leaves, and the next pass that
// finds it gone places the job on these.
struct Resize {
  std::string job_uid;
  int64_t job_version = 0;
  std::vector<Placement::Rank> ranks;
  Reason reason;
  absl::Duration grace;
  bool grows = false;
};

// A node whose lease nobody renewed for too long.
struct LostNode {
  std::string name;
  // The value at which it stood still: a lease that was renewed since is left alone.
  int64_t beat = 0;
};

// A rank that has not begun within the limit for a start (FailStart).
struct FailedStart {
  std::string job_uid;
  int64_t job_version = 0;
  FailureRecord failure;  // names the rank
};

// The loss of a node that its job has to pay for with a restart after all (ChargeLoss).
struct LossCharge {
  std::string job_uid;
  int64_t job_version = 0;
  std::string node;      // the one that was lost
  int64_t attempt = 0;   // that ran there then
  std::string survivor;  // name of the job that began there after the loss and runs
};

// A job that is being cancelled and need not wait for its lost ranks any longer (EndCancelled).
struct OverdueCancel {
  std::string job_uid;
  int64_t job_version = 0;
};

struct Decisions {
  std::vector<Placement> placements;
  std::vector<Suspension> suspensions;
  std::vector<Resize> resizes;
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

// The replica in the name of a holder, "REPLICA/PROCESS": "a" for "a/b", and for "a".
absl::string_view ReplicaOf(absl::string_view holder);

struct LeaderLease {
  int64_t epoch = 0;
  absl::Time end;  // on the store's clock; only shown to people
};

// Who leads. The lease is a counter: `beat` changes whenever it is renewed.
struct LeaderRecord {
  std::string holder;  // empty: nobody
  int64_t epoch = 0;
  int64_t beat = 0;
};

// For readers other than the leader: takes the lease of every reachable node as valid. Only the
// leader can tell how old a lease is, by its own clock.
void TrustLeases(SchedulerSnapshot& snapshot);

// Thread-safe.
class SchedulerStore {
 public:
  virtual ~SchedulerStore() = default;

  virtual absl::StatusOr<LeaderRecord> ReadLeader() = 0;

  // Takes or renews leadership for `holder`; a new holder gets a larger epoch. It may lead only
  // when nobody leads, or when the beat of the old holder's lease is still `stale_beat`, at which
  // the caller saw it stand still for too long. kFailedPrecondition: someone else leads, named in
  // the message. A holder named "REPLICA/PROCESS" replaces another process of the same replica at
  // once: that process has ended, or is refused by its epoch at its next write.
  virtual absl::StatusOr<LeaderLease> Lead(const std::string& holder, absl::Duration lease,
                                           std::optional<int64_t> stale_beat) = 0;
  virtual absl::Status StandDown(const std::string& holder) = 0;

  virtual absl::StatusOr<SchedulerSnapshot> ReadSnapshot() = 0;

  // What changed since `since`, which must not be older than kOldestPosition. If the store cannot
  // tell, as after a fail-over: everything, with `whole` set. A change of only steps or checkpoints
  // may be left out. `leases`: whether to read the leases, too, all of which change every few
  // seconds.
  virtual absl::StatusOr<SnapshotChanges> ReadChanges(const ChangePosition& since, bool leases) = 0;
  static constexpr absl::Duration kOldestPosition = absl::Hours(1);

  // Applies the decisions that still hold, in one transaction, and returns how many jobs and
  // cordons they changed; new reasons do not count. What no longer holds is left to the next pass:
  // a placement whose slots are no longer free or whose node is draining or not reachable, a lost
  // node whose lease was renewed, and any decision on a job whose version moved. A placement makes
  // attempt + 1 that restores from the newest checkpoint, with its ranks and feed items (state
  // change and attempt started). A new reason does not change the version or the feed.
  virtual absl::StatusOr<int> Apply(int64_t leader_epoch, const Decisions& decisions) = 0;
};

}  // namespace trainyard
