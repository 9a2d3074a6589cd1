#pragma once

// The arrows of a job's way as pure functions: a store locks a job, reads it, asks here what
// becomes of it, and writes that. The database and the fake thereby cannot differ in what they
// decide.

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

// Why a job waits until the scheduler has looked at it. Of a job that was submitted for this reason
// a store need not keep the first feed item, which then says nothing else.
Reason SubmittedReason();

// Checks a submission (kInvalidArgument names the field) and completes it: uid and job id when
// empty, SubmittedReason() if it has none, state QUEUED, version 1, times, first feed item.
absl::StatusOr<JobChange> NewJob(const JobRecord& submitted, absl::Time now);

// Whether a replay under the same request id asks for the same: spec, priority, labels and job id
// (an empty job id asks for any).
bool SameSubmission(const JobRecord& submitted, const JobRecord& earlier);

// The user's arrows as job_store.h describes them; unchanged jobs come back with changed = false.
// `lost`: a rank of the job, of whichever attempt, is lost.
absl::StatusOr<JobChange> CancelJob(const JobRecord& job, bool lost, int64_t version,
                                    const Reason& reason, absl::Time now);
absl::StatusOr<JobChange> PauseJob(const JobRecord& job, int64_t version, const Reason& reason,
                                   absl::Duration grace, absl::Time now);
absl::StatusOr<JobChange> ResumeJob(const JobRecord& job, int64_t version, const Reason& reason,
                                    absl::Time now);
absl::Status CheckDeletable(const JobRecord& job, int64_t version);

// The scheduler's arrows. The job must be QUEUED, or STARTING or RUNNING.
struct Placed {
  JobChange change;
  AttemptRecord attempt;
};
// `ranks` say node, slots and claim, by rank. `newest` may be null: the attempt starts from step 0.
Placed PlaceJob(const JobRecord& job, const std::vector<RankRecord>& ranks,
                const CheckpointRecord* newest, const Reason& reason, absl::Time now);
JobChange SuspendJob(const JobRecord& job, SuspendCause cause, const Reason& reason,
                     absl::Duration grace, absl::Time now);

// Another job, `survivor`, ran on `node` after that was lost under this one: so the node is well,
// and the loss is paid with a restart. A job that has none left fails, once it waits in the queue;
// before that it comes back unchanged.
JobChange ChargeLoss(const JobRecord& job, const std::string& node, const std::string& survivor,
                     absl::Time now);

// What events or losses make of a job and its newest attempt.
struct AttemptChange {
  JobChange change;
  AttemptRecord attempt;        // with its ranks
  bool wishes_changed = false;  // a rank left or failed: slots or desired sets differ
  std::vector<CheckpointWritten> checkpoints;  // to upsert by step, then to remove, in this order
  absl::Time time;                             // of the change
};

// One rank's events from sequence acked + 1 on (store.h's rules for gaps and ranks apply). A point
// for which `in_series(step, split)` holds, or which came before in `events`, is dropped: the
// current series has one point per step and split. The rank is not gone.
using InSeries = std::function<bool(int64_t step, MetricSplit split)>;
absl::StatusOr<AttemptChange> TakeEvents(const JobRecord& job, const AttemptRecord& attempt,
                                         int rank, const std::vector<RankEventRecord>& events,
                                         const InSeries& in_series, absl::Time now);

// The job has been STARTING for too long, and `rank` has not begun: it failed, which ends the gang.
// Unchanged when it has begun meanwhile.
AttemptChange FailStart(const JobRecord& job, const AttemptRecord& attempt, int rank,
                        const FailureRecord& failure, absl::Time now);

// Those of `ranks` that are not over yet become gone: killed (absent), or lost.
AttemptChange DropRanks(const JobRecord& job, const AttemptRecord& attempt,
                        const std::vector<int>& ranks, RankOutcome outcome, absl::Time now);

// What MayRejoin allows: the ranks run, and so does the job, as if they had never been lost. A
// restart that the loss cost at once comes back; one that ChargeLoss took since does not.
AttemptChange RejoinRanks(const JobRecord& job, const AttemptRecord& attempt, absl::Time now);

// A job that is being cancelled, and all of whose ranks are over, ends: none of them is lost any
// more, or they have been for so long that whatever lived on has ended itself. Unchanged in any
// other case.
JobChange EndCancelled(const JobRecord& job, const AttemptRecord& attempt, absl::Time now);

// Times are kept in microseconds, as PostgreSQL keeps them.
absl::Time ToMicroseconds(absl::Time time);

}  // namespace trainyard
