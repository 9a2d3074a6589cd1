#include "storage/records/change.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"
#include "storage/records/move.h"
#include "storage/records/reason_codes.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

absl::Status CheckVersion(const JobRecord& job, int64_t version) {
  if (version == 0 || version == job.version) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("job ", job.job_id, " is at version ", job.version,
                                         ", not ", version, ": read it again"));
}

absl::Status Forbidden(const JobRecord& job, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.job_id, " is ", JobStateName(job.state), " and cannot be ", what));
}

absl::Status CheckSubmission(const JobRecord& job) {
  TY_RETURN_IF_ERROR(CheckText("uid", job.uid));
  TY_RETURN_IF_ERROR(CheckText("project", job.project));
  TY_RETURN_IF_ERROR(CheckText("job_id", job.job_id));
  TY_RETURN_IF_ERROR(CheckText("creator", job.creator));
  TY_RETURN_IF_ERROR(CheckText("request_id", job.request_id));
  TY_RETURN_IF_ERROR(CheckText("device", job.device));
  TY_RETURN_IF_ERROR(CheckReason(job.reason));
  for (const auto& [key, value] : job.labels) {
    TY_RETURN_IF_ERROR(CheckText("labels: key", key));
    TY_RETURN_IF_ERROR(CheckText(absl::StrCat("labels.", key), value));
  }
  if (job.project.empty()) return absl::InvalidArgumentError("project: empty");
  if (job.min_slots < 1 || job.max_slots < job.min_slots) {
    return absl::InvalidArgumentError(absl::StrCat("slots: found min ", job.min_slots, " and max ",
                                                   job.max_slots, ", expected 1 <= min <= max"));
  }
  if (job.max_restarts < 0 || job.backoff < absl::ZeroDuration() || job.total_steps < 0 ||
      job.bytes_per_slot < 0) {
    return absl::InvalidArgumentError(
        "max_restarts, backoff, total_steps, bytes_per_slot: found a negative one");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Time ToMicroseconds(absl::Time time) {
  if (time == absl::InfinitePast() || time == absl::InfiniteFuture()) return time;
  return absl::FromUnixMicros(absl::ToUnixMicros(time));
}

void MoveJob(JobChange& change, JobTrigger trigger, const Reason& reason, absl::Time now) {
  JobRecord& job = change.job;
  const JobState from = job.state;
  const JobState shown_from = ShownState(job);
  const std::optional<JobState> to = NextJobState(from, trigger);
  TY_CHECK(to.has_value(), JobTriggerName(trigger), " from ", JobStateName(from), " of job ",
           job.uid);
  job.state = *to;
  job.reason = reason;
  job.version += 1;
  job.update_time = now;
  if (*to == JobState::kRunning && job.start_time == absl::InfinitePast()) job.start_time = now;
  job.end_time = IsTerminal(*to) ? now : absl::InfinitePast();
  if (IsTerminal(*to) && job.resize.has_value()) job.resize->kept_step = 0;
  if (*to != JobState::kSuspending && *to != JobState::kSuspended) {
    job.suspend_cause = SuspendCause::kNone;
  }
  if (*to != JobState::kSuspending) job.suspend_deadline = absl::InfiniteFuture();
  job.not_before = absl::InfinitePast();
  change.changed = true;
  // Within a resize its users see one state, and are told once why.
  if (shown_from != from && ShownState(job) != job.state) return;
  change.feed.push_back({.time = now,
                         .attempt = job.attempt,
                         .what = StateChangeRecord{shown_from, ShownState(job), reason}});
}

Reason SubmittedReason() { return {reason::kSubmitted, "waits for the scheduler to look at it"}; }

absl::StatusOr<JobChange> NewJob(const JobRecord& submitted, absl::Time now) {
  TY_RETURN_IF_ERROR(CheckSubmission(submitted));
  JobChange change;
  JobRecord& job = change.job;
  job = submitted;
  if (job.uid.empty()) job.uid = RandomHex(16);
  if (job.job_id.empty()) job.job_id = MakeJobId("job");
  if (job.reason.code.empty()) job.reason = SubmittedReason();
  job.state = JobState::kQueued;
  job.suspend_cause = SuspendCause::kNone;
  job.version = 1;
  job.attempt = 0;
  job.restarts = job.losses = 0;
  job.avoid_node.clear();
  job.step = 0;
  job.create_time = job.update_time = now;
  job.not_before = job.start_time = job.end_time = absl::InfinitePast();
  job.suspend_deadline = absl::InfiniteFuture();
  job.failure.reset();
  job.resize.reset();
  job.newest_checkpoint_uri.clear();
  job.arithmetic.clear();
  change.changed = true;
  change.feed.push_back(
      {.time = now, .what = StateChangeRecord{std::nullopt, JobState::kQueued, SubmittedReason()}});
  return change;
}

bool SameSubmission(const JobRecord& submitted, const JobRecord& earlier) {
  return submitted.spec == earlier.spec && submitted.priority == earlier.priority &&
         submitted.labels == earlier.labels &&
         (submitted.job_id.empty() || submitted.job_id == earlier.job_id);
}

absl::StatusOr<JobChange> CancelJob(const JobRecord& job, bool lost, int64_t version,
                                    const Reason& reason, absl::Time now) {
  TY_RETURN_IF_ERROR(CheckReason(reason));
  JobChange change{.job = job};
  // It is cancelled already, or being cancelled: the version may be older only because of the
  // earlier call of the same caller.
  if (job.state == JobState::kCancelled || job.state == JobState::kCancelling) return change;
  TY_RETURN_IF_ERROR(CheckVersion(job, version));
  if (!NextJobState(job.state, JobTrigger::kCancel)) return Forbidden(job, "cancelled");
  const bool waits = lost && NextJobState(job.state, JobTrigger::kCancelLost).has_value();
  MoveJob(change, waits ? JobTrigger::kCancelLost : JobTrigger::kCancel, reason, now);
  return change;
}

absl::StatusOr<JobChange> PauseJob(const JobRecord& job, int64_t version, const Reason& reason,
                                   absl::Duration grace, absl::Time now) {
  TY_RETURN_IF_ERROR(CheckReason(reason));
  JobChange change{.job = job};
  const bool suspending = job.state == JobState::kSuspending;
  if (job.state == JobState::kSuspended ||
      (suspending && job.suspend_cause == SuspendCause::kUser)) {
    return change;
  }
  TY_RETURN_IF_ERROR(CheckVersion(job, version));
  if (!NextJobState(job.state, JobTrigger::kPause)) return Forbidden(job, "paused");
  MoveJob(change, JobTrigger::kPause, reason, now);
  change.job.suspend_cause = SuspendCause::kUser;
  // A suspension under way keeps its deadline: its ranks were told already.
  if (change.job.state == JobState::kSuspending && !suspending) {
    change.job.suspend_deadline = ToMicroseconds(now + grace);
  }
  return change;
}

absl::StatusOr<JobChange> ResumeJob(const JobRecord& job, int64_t version, const Reason& reason,
                                    absl::Time now) {
  TY_RETURN_IF_ERROR(CheckReason(reason));
  JobChange change{.job = job};
  const bool paused = job.suspend_cause == SuspendCause::kUser;
  if (job.state == JobState::kQueued || job.state == JobState::kStarting ||
      job.state == JobState::kRunning || (job.state == JobState::kSuspending && !paused)) {
    return change;
  }
  TY_RETURN_IF_ERROR(CheckVersion(job, version));
  if (!NextJobState(job.state, JobTrigger::kResume)) return Forbidden(job, "resumed");
  MoveJob(change, JobTrigger::kResume, reason, now);
  change.job.suspend_cause = SuspendCause::kNone;
  if (IsTerminal(job.state)) {  // begins anew; its attempts keep the history
    change.job.restarts = 0;
    change.job.losses = 0;
    change.job.avoid_node.clear();
    change.job.failure.reset();
  }
  return change;
}

absl::Status CheckDeletable(const JobRecord& job, int64_t version) {
  TY_RETURN_IF_ERROR(CheckVersion(job, version));
  return IsTerminal(job.state) ? absl::OkStatus() : Forbidden(job, "deleted before it ended");
}

Placed PlaceJob(const JobRecord& job, const std::vector<RankRecord>& ranks,
                const CheckpointRecord* newest, const Reason& reason, absl::Time now) {
  Placed placed;
  AttemptRecord& attempt = placed.attempt;
  attempt.job_uid = job.uid;
  attempt.attempt = job.attempt + 1;
  attempt.world_size = static_cast<int>(ranks.size());
  attempt.layout = job.layout;
  attempt.create_time = now;
  if (newest != nullptr) {
    attempt.restore_step = newest->step;
    attempt.restore_uri = newest->uri;
    attempt.restore_manifest_sha256 = newest->manifest_sha256;
  }
  // The metrics up to the state in memory are stored, also if it is gone and these steps are made
  // again.
  if (MayTryKeptState(job, attempt.attempt)) {
    attempt.restore_step = std::max(attempt.restore_step, job.resize->kept_step);
  }
  AttemptStartedRecord started{.step = attempt.restore_step};
  for (size_t i = 0; i < ranks.size(); ++i) {
    attempt.ranks.push_back({.id = {job.uid, attempt.attempt, static_cast<int>(i)},
                             .node = ranks[i].node,
                             .claim = ranks[i].claim,
                             .slots = ranks[i].slots});
    started.nodes.push_back(ranks[i].node);
  }
  placed.change.job = job;
  placed.change.job.attempt = attempt.attempt;
  placed.change.job.step = attempt.restore_step;
  MoveJob(placed.change, JobTrigger::kPlace, reason, now);
  placed.change.feed.push_back(
      {.time = now, .attempt = attempt.attempt, .what = std::move(started)});
  return placed;
}

JobChange SuspendJob(const JobRecord& job, SuspendCause cause, const Reason& reason,
                     absl::Duration grace, absl::Time now) {
  JobChange change{.job = job};
  MoveJob(change, cause == SuspendCause::kUser ? JobTrigger::kPause : JobTrigger::kPreempt, reason,
          now);
  change.job.suspend_cause = cause;
  change.job.suspend_deadline = ToMicroseconds(now + grace);
  return change;
}

JobChange ResizeJob(const JobRecord& job, const std::vector<RankSlots>& ranks, bool grows,
                    const Reason& reason, absl::Duration grace, absl::Time now) {
  JobChange change = SuspendJob(job, SuspendCause::kPreempted, reason, grace, now);
  ResizeRecord& resize = change.job.resize.emplace(ResizeRecord{.attempt = job.attempt,
                                                                .ranks = ranks,
                                                                .layout = job.layout,
                                                                .growths = GrowthsSince(job, now)});
  if (grows) resize.growths.push_back(ToMicroseconds(now));
  return change;
}

std::vector<absl::Time> GrowthsSince(const JobRecord& job, absl::Time now) {
  std::vector<absl::Time> growths;
  if (!job.resize.has_value()) return growths;
  for (const absl::Time time : job.resize->growths) {
    if (time > now - kGrowthsCountFor) growths.push_back(time);
  }
  return growths;
}

absl::StatusOr<JobChange> SetSlotRange(const JobRecord& job, int64_t version,
                                       const SlotRange& range, const std::string& by,
                                       absl::Time now) {
  JobChange change{.job = job};
  const bool other_layout = job.layout != range.layout;
  if (job.min_slots == range.min_slots && job.max_slots == range.max_slots && !other_layout) {
    return change;
  }
  TY_RETURN_IF_ERROR(CheckVersion(job, version));
  // One that ended, and may go on, gets it when it does.
  const bool ended = IsTerminal(job.state);
  if (ended && !NextJobState(job.state, JobTrigger::kResume)) return Forbidden(job, "resized");
  change.job.min_slots = range.min_slots;
  change.job.max_slots = range.max_slots;
  change.job.bytes_per_slot = range.bytes_per_slot;
  change.job.slot_step = range.slot_step;
  change.job.group_ranks = range.group_ranks;
  change.job.layout = range.layout;
  TY_RETURN_IF_ERROR(CheckSubmission(change.job));
  change.job.version += 1;
  change.changed = true;
  if (ended) return change;  // its feed is over
  const std::string layout =
      other_layout ? absl::StrCat(" in the layout ", range.layout_in_words) : "";
  change.feed.push_back(
      {.time = now,
       .attempt = job.attempt,
       .what = NoticeRecord{.message = absl::StrCat("takes ", DescribeRange(change.job), layout,
                                                    " from now on, as ", by, " asked; it was ",
                                                    DescribeRange(job),
                                                    other_layout ? " in another layout" : "")}});
  return change;
}

std::string DescribeRange(const JobRecord& job) {
  if (job.min_slots < job.max_slots) {
    return absl::StrCat(job.min_slots, " to ", job.max_slots, " slots");
  }
  return absl::StrCat(job.min_slots, job.min_slots == 1 ? " slot" : " slots");
}

JobChange ChargeLoss(const JobRecord& job, const std::string& node, const std::string& survivor,
                     absl::Time now) {
  JobChange change{.job = job};
  const std::string blame = absl::StrCat(
      "the loss of nodes/", node, " counts against the job: ", survivor, " has run there since");
  if (job.restarts >= job.max_restarts) {
    if (job.state != JobState::kQueued) return change;
    MoveJob(change, JobTrigger::kFail,
            {reason::kRestartsSpent,
             absl::StrCat(blame, "; all ", job.max_restarts, " restarts are used up")},
            now);
    return change;
  }
  change.job.restarts += 1;
  change.job.version += 1;
  change.job.update_time = now;
  change.changed = true;
  change.feed.push_back(
      {.time = now,
       .attempt = job.attempt,
       .what = NoticeRecord{.rank = 0,
                            .warning = true,
                            .message = absl::StrCat(blame, ", as restart ", change.job.restarts,
                                                    " of ", job.max_restarts)}});
  return change;
}

}  // namespace trainyard
