#pragma once

// All transitions of a job as pure functions: a store locks a job, reads it, asks one of these
// functions what becomes of it, and writes the result. The database and the fake thereby cannot
// differ in what they decide.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/records/attempt.h"
#include "storage/records/feed.h"
#include "storage/records/job.h"

namespace trainyard {

// What one transaction makes of one job.
struct JobChange {
  JobRecord job;                 // as it must be written
  bool changed = false;          // state or suspend cause: the version grew
  std::vector<FeedRecord> feed;  // to append in this order; the store gives sequences
};

// The reason of a job that the scheduler has not looked at yet. Every feed begins with it: a store
// need not keep the first item, which can be made from the job itself.
Reason SubmittedReason();

// Checks a submission (kInvalidArgument names the field) and completes it: uid and job id when
// empty, SubmittedReason() if it has none, state QUEUED, version 1, times, first feed item.
absl::StatusOr<JobChange> NewJob(const JobRecord& submitted, absl::Time now);

// Whether a replay under the same request id asks for the same: spec, priority, labels and job id
// (an empty job id asks for any).
bool SameSubmission(const JobRecord& submitted, const JobRecord& earlier);

// The user's transitions as job_store.h describes them; unchanged jobs come back with changed =
// false. `lost`: whether a rank of the job, of any attempt, is LOST.
absl::StatusOr<JobChange> CancelJob(const JobRecord& job, bool lost, int64_t version,
                                    const Reason& reason, absl::Time now);
absl::StatusOr<JobChange> PauseJob(const JobRecord& job, int64_t version, const Reason& reason,
                                   absl::Duration grace, absl::Time now);
absl::StatusOr<JobChange> ResumeJob(const JobRecord& job, int64_t version, const Reason& reason,
                                    absl::Time now);
absl::Status CheckDeletable(const JobRecord& job, int64_t version);

// The scheduler's transitions. PlaceJob takes a QUEUED job, SuspendJob a STARTING or RUNNING one.
struct Placed {
  JobChange change;
  AttemptRecord attempt;
};
// `ranks` say node, slots and claim, by rank. `newest` may be null: the attempt starts from step 0.
Placed PlaceJob(const JobRecord& job, const std::vector<RankRecord>& ranks,
                const CheckpointRecord* newest, const Reason& reason, absl::Time now);
JobChange SuspendJob(const JobRecord& job, SuspendCause cause, const Reason& reason,
                     absl::Duration grace, absl::Time now);

// Asks the gang of a RUNNING job to leave for an attempt with `ranks`, which differ in number.
// `grows`: they are more, and that was not what a user asked for: it counts against the limit.
JobChange ResizeJob(const JobRecord& job, const std::vector<RankSlots>& ranks, bool grows,
                    const Reason& reason, absl::Duration grace, absl::Time now);

// The times of ResizeRecord::growths that still count.
inline constexpr absl::Duration kGrowthsCountFor = absl::Hours(1);
std::vector<absl::Time> GrowthsSince(const JobRecord& job, absl::Time now);

// Lets the job run on any number of slots in `range` from now on; the scheduler sees to what runs.
// kFailedPrecondition: the job has ended.
absl::StatusOr<JobChange> SetSlotRange(const JobRecord& job, int64_t version,
                                       const SlotRange& range, const std::string& by,
                                       absl::Time now);
std::string DescribeRange(const JobRecord& job);  // "1 to 8 slots", "3 slots"

// Charges the job a restart for the loss of `node`: another job, `survivor`, has run there since,
// so the node is healthy. A job without restarts left fails if it is QUEUED; until then it comes
// back unchanged.
JobChange ChargeLoss(const JobRecord& job, const std::string& node, const std::string& survivor,
                     absl::Time now);

// What events or losses make of a job and its newest attempt.
struct AttemptChange {
  JobChange change;
  AttemptRecord attempt;        // with its ranks
  bool wishes_changed = false;  // a rank left or failed: slots or desired sets differ
  std::vector<CheckpointWritten> checkpoints;  // of each, in order: upsert by step, then remove
  absl::Time time;                             // of the change
};

// Applies the events of one rank from sequence acked + 1 on; the rules of FleetStore::AppendEvents
// for gaps and ranks apply. A metric point for which `in_series(step, split)` holds, or which came
// before in `events`, is dropped: the current series has one point per step and split. The rank
// must not be over.
using InSeries = std::function<bool(int64_t step, MetricSplit split)>;
absl::StatusOr<AttemptChange> TakeEvents(const JobRecord& job, const AttemptRecord& attempt,
                                         int rank, const std::vector<RankEventRecord>& events,
                                         const InSeries& in_series, absl::Time now);

// Fails `rank`, which has not begun although its job has been STARTING for too long; this ends the
// gang. Nothing changes if the rank has begun meanwhile.
AttemptChange FailStart(const JobRecord& job, const AttemptRecord& attempt, int rank,
                        const FailureRecord& failure, absl::Time now);

// Ends those of `ranks` that are not over yet, with `outcome` unless they have one. kKilled: their
// agent does not have them, and they are GONE. kLost: their node's lease ended, and they are LOST,
// or GONE if an older agent ran them.
AttemptChange DropRanks(const JobRecord& job, const AttemptRecord& attempt,
                        const std::vector<int>& ranks, RankOutcome outcome, absl::Time now);

// Undoes the loss of ranks that MayRejoin lets go on: they and the job are RUNNING as if the ranks
// had never been lost. A restart that EvaluateAttempt took for the loss is given back; one that
// ChargeLoss took since is not.
AttemptChange RejoinRanks(const JobRecord& job, const AttemptRecord& attempt, absl::Time now);

// Ends a job that is being cancelled and all of whose ranks are over. The caller has made sure that
// none is LOST any more, or that they have been LOST for so long that their processes have ended
// themselves. Unchanged in any other case.
JobChange EndCancelled(const JobRecord& job, const AttemptRecord& attempt, absl::Time now);

// Times are kept in microseconds, as PostgreSQL keeps them.
absl::Time ToMicroseconds(absl::Time time);

}  // namespace trainyard
