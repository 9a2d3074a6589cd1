#pragma once

// A job as the store keeps it, and the one table of its legal transitions.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard {

// Stored by name, compared by name with the constraint in migrations/; see kJobTransitions.
enum class JobState {
  kQueued,
  kStarting,
  kRunning,
  kSuspending,
  kSuspended,
  kCancelling,
  kCancelled,
  kSucceeded,
  kFailed,
};

inline constexpr JobState kAllJobStates[] = {
    JobState::kQueued,     JobState::kStarting,  JobState::kRunning,
    JobState::kSuspending, JobState::kSuspended, JobState::kCancelling,
    JobState::kCancelled,  JobState::kSucceeded, JobState::kFailed,
};

absl::string_view JobStateName(JobState state);  // "QUEUED"
std::optional<JobState> ParseJobState(absl::string_view name);

// Nothing happens to such a job by itself; a failed or cancelled one may be resumed.
inline bool IsTerminal(JobState s) {
  return s == JobState::kCancelled || s == JobState::kSucceeded || s == JobState::kFailed;
}
// Whether an attempt may hold slots in this state.
inline bool HoldsSlots(JobState s) {
  return s == JobState::kStarting || s == JobState::kRunning || s == JobState::kSuspending ||
         s == JobState::kCancelling;
}

// What drives a transition.
enum class JobTrigger {
  kPlace,        // the scheduler gave it slots
  kFirstStep,    // all ranks are up: restored and stepping
  kPause,        // the user asked
  kPreempt,      // the scheduler, a drain or a rescale asked
  kResume,       // the user asked
  kCancel,       // the user asked
  kCancelLost,   // the user asked, and a lost rank of the job may still run
  kRanksGone,    // the last process of the attempt is proven gone after cancel
  kSuspendedOk,  // all ranks wrote their checkpoint and left
  kSucceed,      // all ranks finished
  kRetry,        // a retryable failure within the budget, or the node was lost
  kFail,         // a failure for good
  kRejoin,       // its lost ranks are heard of again, and no newer attempt replaced them
};
absl::string_view JobTriggerName(JobTrigger trigger);

struct JobTransition {
  JobState from;
  JobTrigger trigger;
  JobState to;
};

// All legal transitions; no other change of state is possible. Drives the code, the SQL constraint
// (migrations insert exactly these pairs; a test compares), the table in storage/README.md and
// tests. A success that commits before a cancel wins; so does one that arrives while suspending.
inline constexpr JobTransition kJobTransitions[] = {
    {JobState::kQueued, JobTrigger::kPlace, JobState::kStarting},
    {JobState::kQueued, JobTrigger::kPause, JobState::kSuspended},
    {JobState::kQueued, JobTrigger::kCancel, JobState::kCancelled},
    {JobState::kQueued, JobTrigger::kCancelLost, JobState::kCancelling},
    {JobState::kQueued, JobTrigger::kFail, JobState::kFailed},
    {JobState::kQueued, JobTrigger::kRejoin, JobState::kRunning},
    {JobState::kStarting, JobTrigger::kFirstStep, JobState::kRunning},
    {JobState::kStarting, JobTrigger::kPause, JobState::kSuspending},
    {JobState::kStarting, JobTrigger::kPreempt, JobState::kSuspending},
    {JobState::kStarting, JobTrigger::kCancel, JobState::kCancelling},
    {JobState::kStarting, JobTrigger::kSucceed, JobState::kSucceeded},
    {JobState::kStarting, JobTrigger::kRetry, JobState::kQueued},
    {JobState::kStarting, JobTrigger::kFail, JobState::kFailed},
    {JobState::kRunning, JobTrigger::kPause, JobState::kSuspending},
    {JobState::kRunning, JobTrigger::kPreempt, JobState::kSuspending},
    {JobState::kRunning, JobTrigger::kCancel, JobState::kCancelling},
    {JobState::kRunning, JobTrigger::kSucceed, JobState::kSucceeded},
    {JobState::kRunning, JobTrigger::kRetry, JobState::kQueued},
    {JobState::kRunning, JobTrigger::kFail, JobState::kFailed},
    {JobState::kSuspending, JobTrigger::kSuspendedOk,
     JobState::kSuspended},                                            // cause: the user's pause
    {JobState::kSuspending, JobTrigger::kPreempt, JobState::kQueued},  // all left; any other cause
    {JobState::kSuspending, JobTrigger::kResume,
     JobState::kSuspending},  // cause becomes none: to the queue
    {JobState::kSuspending, JobTrigger::kPause, JobState::kSuspending},  // cause becomes the user's
    {JobState::kSuspending, JobTrigger::kCancel, JobState::kCancelling},
    {JobState::kSuspending, JobTrigger::kSucceed, JobState::kSucceeded},
    {JobState::kSuspending, JobTrigger::kRetry, JobState::kQueued},
    {JobState::kSuspending, JobTrigger::kFail, JobState::kFailed},
    {JobState::kSuspended, JobTrigger::kResume, JobState::kQueued},
    {JobState::kFailed, JobTrigger::kResume, JobState::kQueued},
    {JobState::kCancelled, JobTrigger::kResume, JobState::kQueued},
    {JobState::kSuspended, JobTrigger::kCancel, JobState::kCancelled},
    {JobState::kSuspended, JobTrigger::kCancelLost, JobState::kCancelling},
    {JobState::kCancelling, JobTrigger::kRanksGone, JobState::kCancelled},
    {JobState::kCancelling, JobTrigger::kSucceed, JobState::kSucceeded},
};

// Where `trigger` leads from `from`, or nothing when that is not legal.
std::optional<JobState> NextJobState(JobState from, JobTrigger trigger);

// Why a suspension was asked for; decides where SUSPENDING ends: SUSPENDED when the user asked,
// QUEUED otherwise (kNone while SUSPENDING: the user paused and then resumed).
enum class SuspendCause { kNone, kUser, kPreempted, kDrained };
absl::string_view SuspendCauseName(SuspendCause cause);  // "PREEMPTED"
std::optional<SuspendCause> ParseSuspendCause(absl::string_view name);

// Why a job is where it is. Codes are stable; see storage/records/reason_codes.h.
struct Reason {
  std::string code;
  std::string message;
  friend bool operator==(const Reason&, const Reason&) = default;
};

// What went wrong in an attempt. Category names are those of Failure.Category in run.proto.
struct FailureRecord {
  std::string category;
  std::string message;
  bool retryable = false;
  int rank = 0;
  std::string node;
  bool rolled_back = false;  // retryable at once, and no restart is spent
  // For a rank whose node was lost, to be undone if its job rejoins (RejoinRanks):
  bool had_restored = false;  // the rank was RUNNING
  bool counted = false;       // JobRecord::losses includes it
  // The rank has the whole state of its gang, which broke, or its share of it, and may leave it in
  // its node's memory, or help another rank to.
  bool has_state = false;
  bool left_state = false;  // and has done so
  // Of has_state: the rank also has what rank 0 was to report of the steps after this one. Not
  // stored.
  int64_t told_after = 0;
};

// What one rank has of a node.
struct RankSlots {
  std::string node;
  std::vector<int> slots;
  friend bool operator==(const RankSlots&, const RankSlots&) = default;
};

// The change of a job's slots or layout that was decided last, and what an attempt left in memory.
// Its gang is asked to leave its state in memory, or to write a checkpoint, and to leave; the next
// attempt goes on from there with `ranks`, whose slots nobody else is given meanwhile.
struct ResizeRecord {
  int64_t attempt = 0;  // the one that leaves; the resize is over once there is a newer one
  std::vector<RankSlots> ranks;  // of the one that follows
  std::string layout;            // of the job when it was decided: `ranks` hold it in that one
  // When it was given more slots than it had, the newest last; what is older than a limit on such
  // times looks back is forgotten.
  std::vector<absl::Time> growths;
  // The attempt left the state after this step in the memory of some of its nodes, to be resized or
  // since it lost others (then `ranks` are those that did, unless it was being resized), and no
  // later one has come further or gone on from before it. Memory may be gone; then the next attempt
  // goes on from the newest checkpoint, and makes the steps from there again. 0: nothing is kept.
  int64_t kept_step = 0;
  friend bool operator==(const ResizeRecord&, const ResizeRecord&) = default;
};

// On which nodes a job may be placed, by the fingerprint of their arithmetic
// (storage/base/arithmetic.h, of which what is certain to change bits counts). Stored by name.
enum class ArithmeticRule {
  // Of a server of before, which did not keep it: as kSameInAttempt while some nodes could hold it
  // so, else as kAny.
  kUnknown,
  kAny,
  kSameInAttempt,  // ranks of one attempt: one fingerprint
  kSame,           // likewise, and that of the first attempt once it has been RUNNING
};
absl::string_view ArithmeticRuleName(ArithmeticRule rule);  // "SAME_IN_ATTEMPT"; kUnknown: ""
std::optional<ArithmeticRule> ParseArithmeticRule(absl::string_view name);

// How many slots a job may have, what each of them must hold, and how they share it out.
struct SlotRange {
  int min_slots = 1;
  int max_slots = 1;
  int64_t bytes_per_slot = 0;
  // As JobRecord has them.
  int slot_step = 1;
  int group_ranks = 1;
  std::string layout;
  std::string layout_in_words;  // for the feed, if `layout` is another one than before
};

struct JobRecord {
  // Fixed at submission.
  std::string uid;
  std::string project;
  std::string job_id;
  std::string creator;
  std::string request_id;    // may be empty
  std::string spec;          // serialized trainyard.v1.JobSpec, defaults resolved
  std::string plan_summary;  // serialized trainyard.v1.PlanSummary
  std::map<std::string, std::string> labels;
  int priority = 0;
  int logical_ranks = 0;  // the most ranks that it can have; 0: not known, of a server of before
  std::string device;     // "", "CPU" or "CUDA"
  ArithmeticRule arithmetic_rule = ArithmeticRule::kUnknown;
  // All of the state has two owners, and ranks leave it in memory when another one is lost
  // (parallel.second_owner). False also of a server of before.
  bool second_owner = false;
  int64_t bytes_per_slot = 0;
  int64_t total_steps = 0;
  int max_restarts = 5;
  absl::Duration backoff = absl::Seconds(1);  // before the first restart
  absl::Time create_time;

  // Changes.
  int min_slots = 1;  // it runs on so many slots at least, and on
  int max_slots = 1;  // so many at most
  // It takes slots in steps of so many, the ranks of a group that shares logical ranks
  // (parallel.layout): min_slots and max_slots are multiples. 1: any number; or of a server of
  // before, and then min_slots is max_slots.
  int slot_step = 1;
  // So many neighbours among its ranks share shards (parallel.layout.tensor): they are best on one
  // node. 1: none, or not known, of a server of before.
  int group_ranks = 1;
  // What attempts from now on have in place of the layout in `spec`
  // (executor/plan/spec/layout_change.h); "": that one. A running attempt of another layout leaves
  // its state and is followed by one of this.
  std::string layout;
  std::optional<ResizeRecord> resize;
  JobState state = JobState::kQueued;
  Reason reason;
  SuspendCause suspend_cause = SuspendCause::kNone;
  int64_t version =
      1;  // the etag: grows with state and suspend cause, not with step or checkpoints
  int64_t attempt = 0;
  int restarts = 0;
  int64_t step = 0;  // newest reported by the newest attempt
  absl::Time update_time;
  absl::Time not_before = absl::InfinitePast();  // backoff
  absl::Time start_time = absl::InfinitePast();
  absl::Time end_time = absl::InfinitePast();
  absl::Time suspend_deadline = absl::InfiniteFuture();  // SUSPENDING: then the ranks are killed
  std::optional<FailureRecord> failure;
  std::string newest_checkpoint_uri;
  int losses = 0;          // how many nodes were lost under it in a row, without a newer checkpoint
  std::string avoid_node;  // the one that failed it last; empty from its first step elsewhere on
  // Of kSame, from its first RUNNING on: the text of the arithmetic that it is bound to, of which
  // what is certain to change bits (CertainArithmetic). Empty: to none.
  std::string arithmetic;
  // How many slots it holds. Only where a job is read for its users: the scheduler knows from its
  // ranks.
  int slots = 0;
};

// Whether the job is between two attempts of which the second has other slots or another layout. It
// goes through SUSPENDING, QUEUED and STARTING as any job that is moved, with the reason RESIZING;
// any other reason (a pause, a failure) ends the resize, and what was kept for it is free again.
bool IsResizing(const JobRecord& job);

// What users are told of the state: a job that is being resized is RUNNING.
JobState ShownState(const JobRecord& job);

}  // namespace trainyard
