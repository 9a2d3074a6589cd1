// What a rank's events, or its loss, make of a job: change.h's TakeEvents and DropRanks.

#include <algorithm>
#include <csignal>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/records/change.h"
#include "storage/records/move.h"
#include "storage/records/rank_exit.h"
#include "storage/records/rank_values.h"
#include "storage/records/reason_codes.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

// Applies events one after the other. After each that changes the state or outcome of the rank,
// EvaluateAttempt judges the job again.
class EventTaker {
 public:
  EventTaker(AttemptChange& result, int rank, const InSeries& in_series, absl::Time now)
      : result_(result), rank_(result.attempt.ranks[rank]), in_series_(in_series), now_(now) {}

  absl::Status Take(const RankEventRecord& event) {
    if (IsOver(rank_.state)) {
      return absl::InvalidArgumentError(absl::StrCat("event ", event.sequence, ": follows Exited"));
    }
    time_ = std::min(ToMicroseconds(event.time), now_);
    TY_RETURN_IF_ERROR(std::visit([this](const auto& what) { return Apply(what); }, event.what));
    rank_.acked_sequence = LastSequenceOf(event);
    return absl::OkStatus();
  }

 private:
  JobRecord& job() { return result_.change.job; }
  int ranks() const { return static_cast<int>(result_.attempt.ranks.size()); }

  // Whether the rank has finished or failed. From then on only notices and its exit are taken, and
  // what a rank says that has_state; after a failure its steps will be done again.
  bool over() const { return rank_.outcome != RankOutcome::kNone; }

  // Whether the rank failed since another one did, and has the whole state: it may still leave that
  // in memory, and tell what rank 0 could not tell any more.
  bool has_state() const { return rank_.failure.has_value() && rank_.failure->has_state; }

  absl::Status OnlyRankZero(absl::string_view what) const {
    if (rank_.id.rank == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_.id.rank, " reports ", what, "; only rank 0 may"));
  }

  void AppendFeed(decltype(FeedRecord::what) what) {
    result_.change.feed.push_back(
        {.time = time_, .attempt = rank_.id.attempt, .what = std::move(what)});
  }

  // Whether `step` lies beyond the job's last one. If so, the rank is failed: its worker runs
  // another job than this one, or lies.
  bool BeyondTheEnd(absl::string_view what, int64_t step) {
    if (!PastTheEnd(step)) return false;
    FailForFalseReport(
        absl::StrCat(what, " of step ", step, ", and the job has ", job().total_steps, " steps"));
    return true;
  }

  bool PastTheEnd(int64_t step) { return job().total_steps > 0 && step > job().total_steps; }

  void FailForFalseReport(const std::string& found) {
    Fail({.category = "INTERNAL",
          .message = absl::StrCat("the worker reported ", found),
          .retryable = false})
        .IgnoreError();
  }

  // The job has come as far as `step`. Nobody goes on any more from what was left in memory before
  // that.
  void Reach(int64_t step) {
    job().step = std::max(job().step, step);
    std::optional<ResizeRecord>& resize = job().resize;
    const bool left_before = resize.has_value() && resize->attempt < rank_.id.attempt;
    if (left_before && step > resize->kept_step) resize->kept_step = 0;
  }

  absl::Status Apply(const RankStarted&) { return absl::OkStatus(); }

  absl::Status Apply(const RankRestored& restored) {
    if (over()) return absl::OkStatus();
    // The worker may restore an older checkpoint, when the newest was damaged: the steps up to
    // restore_step that it repeats are in the current series already, where they are not
    // superseded, so they are not taken twice. With a later checkpoint the metrics would have a
    // gap.
    if (restored.step > result_.attempt.restore_step) {
      return Fail({.category = "INTERNAL",
                   .message = absl::StrCat("restored step ", restored.step, " instead of ",
                                           result_.attempt.restore_step),
                   .retryable = false});
    }
    // A rank that restores during a suspension stays ASSIGNED, so that a gang which DesiredStateOf
    // has decided to stop is not asked for a checkpoint after all.
    if (job().state != JobState::kSuspending) rank_.state = RankState::kRunning;
    if (rank_.id.rank == 0) {
      job().step = std::min(job().step, restored.step);
      // What was left in memory is gone, if this attempt goes on from before it.
      const bool left_before = job().resize.has_value() && job().resize->attempt < rank_.id.attempt;
      if (left_before && restored.step < job().resize->kept_step) job().resize->kept_step = 0;
    }
    // The same for every rank: a gang restores one checkpoint, and its ranks compute alike.
    start_ = {restored.step, restored.arithmetic};
    Settle();
    return absl::OkStatus();
  }

  absl::Status Apply(const MetricRecord& metric) {
    if (over() && !has_state()) return absl::OkStatus();
    if (!has_state()) TY_RETURN_IF_ERROR(OnlyRankZero("metrics"));
    if (metric.step < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("metrics: found step ", metric.step, ", steps count from 1"));
    }
    if (has_state() && PastTheEnd(metric.step)) return absl::OkStatus();
    if (BeyondTheEnd("metrics", metric.step)) return absl::OkStatus();
    Reach(metric.step);
    if (in_series_(metric.step, metric.split)) return absl::OkStatus();
    if (!seen_.emplace(metric.step, metric.split).second) return absl::OkStatus();
    MetricRecord clean{.step = metric.step, .split = metric.split};
    for (const auto& [name, value] : metric.values) clean.values[CleanText(name, 256)] = value;
    RefuseRankValues(ranks(), clean.values);
    AppendFeed(std::move(clean));
    return absl::OkStatus();
  }

  absl::Status ApplyOneByOne(const MetricRun& run) {
    for (size_t i = 0; i < run.steps.size(); ++i) {
      time_ = std::min(ToMicroseconds(run.times[i]), now_);
      TY_RETURN_IF_ERROR(Apply(PointOf(run, i)));
    }
    return absl::OkStatus();
  }

  // Does what ApplyOneByOne does, without making single points: nearly always all of them are
  // taken, unchanged.
  absl::Status Apply(const MetricRun& run) {
    if (over() && !has_state()) return absl::OkStatus();
    if (!has_state()) TY_RETURN_IF_ERROR(OnlyRankZero("metrics"));
    for (const std::string& name : run.names) {
      if (CleanText(name, 256) != name) return ApplyOneByOne(run);  // two names may become one
    }
    if (std::none_of(run.names.begin(), run.names.end(), TellsOfRanks)) return Append(run);
    MetricRun checked = run;
    RefuseRankValues(ranks(), checked);
    return Append(checked);
  }

  absl::Status Append(const MetricRun& run) {
    MetricRun taken{.split = run.split, .names = run.names};
    taken.values.resize(run.names.size());
    const auto take_rest = [&] {
      if (!taken.steps.empty()) AppendFeed(std::move(taken));
    };
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const int64_t step = run.steps[i];
      if (step < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("metrics: found step ", step, ", steps count from 1"));
      }
      if (has_state() && PastTheEnd(step)) break;  // it has failed already
      if (PastTheEnd(step)) {
        take_rest();  // before the failure that the next line makes
        BeyondTheEnd("metrics", step);
        return absl::OkStatus();
      }
      Reach(step);
      if (in_series_(step, run.split) || !seen_.emplace(step, run.split).second) continue;
      taken.steps.push_back(step);
      taken.times.push_back(std::min(ToMicroseconds(run.times[i]), now_));
      for (size_t name = 0; name < run.names.size(); ++name) {
        taken.values[name].push_back(run.values[name][i]);
      }
    }
    take_rest();
    return absl::OkStatus();
  }

  absl::Status Apply(const CheckpointWritten& written) {
    TY_RETURN_IF_ERROR(OnlyRankZero("a checkpoint"));
    if (over() || BeyondTheEnd("a checkpoint", written.checkpoint.step)) return absl::OkStatus();
    CheckpointWritten clean = written;
    CheckpointRecord& checkpoint = clean.checkpoint;
    checkpoint.job_uid = rank_.id.job_uid;
    checkpoint.attempt = rank_.id.attempt;
    checkpoint.create_time = time_;
    checkpoint.uri = CleanText(checkpoint.uri);
    checkpoint.manifest_sha256 = CleanText(checkpoint.manifest_sha256, 64);
    checkpoint.weights_sha256 = CleanText(checkpoint.weights_sha256, 64);
    checkpoint.metrics.clear();
    for (const auto& [name, value] : written.checkpoint.metrics) {
      checkpoint.metrics[CleanText(name, 256)] = value;
    }
    std::erase(clean.removed_uris, checkpoint.uri);
    for (std::string& uri : clean.removed_uris) uri = CleanText(uri);
    Reach(checkpoint.step);
    job().newest_checkpoint_uri = checkpoint.uri;
    if (checkpoint.step > result_.attempt.restore_step) job().losses = 0;
    AppendFeed(checkpoint);
    result_.checkpoints.push_back(std::move(clean));
    return absl::OkStatus();
  }

  absl::Status Apply(const NoticeRecord& notice) {
    AppendFeed(NoticeRecord{rank_.id.rank, notice.warning, CleanText(notice.message)});
    return absl::OkStatus();
  }

  absl::Status Apply(const FailureRecord& failure) {
    if (over()) return absl::OkStatus();
    FailureRecord taken = failure;
    // Where rank 0 has not told as much, metrics would be missing before those that follow.
    const bool gapless = rank_.id.rank == 0 || failure.told_after <= job().step;
    taken.has_state = failure.has_state && failure.category == kPeerCategory && gapless &&
                      job().second_owner && job().state == JobState::kRunning &&
                      rank_.state == RankState::kRunning;
    return Fail(std::move(taken));
  }

  // The rank has left its state in memory although its gang broke. Without a step of its own it
  // left what it had begun with, which is not tried for ever.
  void LeaveState(int64_t step) {
    if (PastTheEnd(step) || step <= result_.attempt.restore_step || IsResizing(job())) return;
    rank_.failure->left_state = true;
    result_.wishes_changed = true;
    std::optional<ResizeRecord>& resize = job().resize;
    if (!resize.has_value() || resize->attempt != rank_.id.attempt) {
      resize = {.attempt = rank_.id.attempt, .growths = GrowthsSince(job(), now_)};
    }
    if (step < resize->kept_step) return;
    if (step > resize->kept_step) resize->ranks.clear();
    resize->ranks.push_back({rank_.node, rank_.slots});
    resize->kept_step = step;
  }

  absl::Status Apply(const RankFinished& finished) {
    if (finished.kept && has_state()) LeaveState(finished.step);
    if (over() || BeyondTheEnd("its end", finished.step)) return absl::OkStatus();
    // A worker that stops early gives a reason; server/fleet/early_end.h checks that the job allows
    // it.
    if (!finished.suspended && finished.reason.empty() && finished.step < job().total_steps) {
      FailForFalseReport(
          absl::StrCat("success at step ", finished.step, " of ", job().total_steps));
      return absl::OkStatus();
    }
    rank_.outcome = finished.suspended ? RankOutcome::kSuspended : RankOutcome::kSucceeded;
    if (rank_.id.rank == 0) job().step = std::max(job().step, finished.step);
    if (rank_.id.rank == 0 && finished.suspended && finished.kept && job().resize.has_value() &&
        job().resize->attempt == rank_.id.attempt) {
      job().resize->kept_step = finished.step;
    }
    if (rank_.id.rank == 0 && !finished.suspended && !finished.reason.empty()) {
      job().reason = {reason::kStoppedEarly, CleanText(finished.reason)};
    }
    Settle();
    return absl::OkStatus();
  }

  absl::Status Apply(const RankExited& exited) {
    if (rank_.outcome == RankOutcome::kNone) Leave(exited);
    rank_.state = RankState::kGone;
    rank_.gone_time = now_;
    Settle();
    return absl::OkStatus();
  }

  absl::Status Fail(FailureRecord failure) {
    failure.category = CleanText(failure.category, 64);
    failure.message = CleanText(failure.message);
    failure.rank = rank_.id.rank;
    failure.node = rank_.node;
    rank_.failure = std::move(failure);
    rank_.outcome = RankOutcome::kFailed;
    Settle();
    return absl::OkStatus();
  }

  // For a rank that exits without having reported an outcome: KILLED if it was to be stopped, LOST
  // if it fenced itself when its lease ended (kExitFenced), else FAILED.
  void Leave(const RankExited& exited) {
    const bool killed = exited.lost || exited.signal == SIGKILL || exited.signal == SIGTERM;
    // That another rank misses this one may be stored before its own end. What killed it, its agent
    // did not: it is the first to have failed, for want of memory perhaps.
    const bool by_others = exited.signal == SIGKILL && !exited.killed.value_or(true);
    const bool gang_over = !by_others && EvaluateAttempt(job(), result_.attempt).stop_the_rest;
    if (job().state == JobState::kCancelling ||
        (killed && (gang_over || job().state == JobState::kSuspending))) {
      rank_.outcome = RankOutcome::kKilled;
    } else if (!exited.lost && exited.signal == 0 && exited.exit_code == kExitFenced) {
      rank_.outcome = RankOutcome::kLost;
    } else {
      rank_.outcome = RankOutcome::kFailed;
      rank_.failure = FailureOfExit(rank_, exited);
    }
  }

  void Settle();

  AttemptChange& result_;
  RankRecord& rank_;
  const InSeries& in_series_;
  const absl::Time now_;
  absl::Time time_;
  std::optional<RankRestored> start_;
  std::set<std::pair<int64_t, MetricSplit>> seen_;
};

// Binds a job to the arithmetic with which it is about to make its first step, if it asks for that.
void BindToArithmetic(JobRecord& job, const Arithmetic& arithmetic) {
  if (job.arithmetic_rule != ArithmeticRule::kSame || !job.arithmetic.empty()) return;
  if (IsWellFormed(arithmetic)) job.arithmetic = ArithmeticToText(CertainArithmetic(arithmetic));
}

// Moves the job as EvaluateAttempt says. `start`: from where the ranks go on, if one has just
// reported it.
void ApplyVerdict(AttemptChange& result, const std::optional<RankRestored>& start, absl::Time now) {
  JobRecord& job = result.change.job;
  AttemptVerdict verdict = EvaluateAttempt(job, result.attempt);
  if (!verdict.trigger.has_value()) return;
  if (*verdict.trigger == JobTrigger::kFirstStep && start.has_value()) {
    verdict.reason = RunningFrom(start->step);
    BindToArithmetic(job, start->arithmetic);
  }
  if (verdict.failure.has_value()) job.failure = verdict.failure;
  if (verdict.spends_restart) job.restarts += 1;
  if (*verdict.trigger == JobTrigger::kFirstStep) job.avoid_node.clear();
  // It goes back behind what is in memory.
  const auto& ranks = result.attempt.ranks;
  const bool rolled_back = std::any_of(ranks.begin(), ranks.end(), [](const RankRecord& rank) {
    return rank.failure.has_value() && rank.failure->rolled_back;
  });
  if (rolled_back && job.resize.has_value()) job.resize->kept_step = 0;
  if (*verdict.trigger == JobTrigger::kRetry && verdict.failure.has_value() &&
      !verdict.failure->rolled_back && verdict.failure->category != kPeerCategory) {
    job.avoid_node = verdict.failure->node;
  }
  MoveJob(result.change, *verdict.trigger, verdict.reason, now);
  if (*verdict.trigger == JobTrigger::kFirstStep) return;
  result.attempt.end_time = now;
  if (verdict.backoff > absl::ZeroDuration())
    job.not_before = ToMicroseconds(now + verdict.backoff);
}

void EventTaker::Settle() {
  ApplyVerdict(result_, start_, now_);
  if (IsOver(rank_.state) || over()) result_.wishes_changed = true;
}

// Lets the job's version grow when what its ranks should do has changed: whoever remembers it for a
// version (DesiredStateKey) then sees that it is out of date.
void BumpVersionIfDesiredChanged(AttemptChange& result, const JobRecord& before) {
  JobRecord& job = result.change.job;
  if (result.wishes_changed && job.version == before.version) job.version += 1;
}

bool AnyNodeLost(const AttemptRecord& attempt) {
  return std::any_of(attempt.ranks.begin(), attempt.ranks.end(), [](const RankRecord& rank) {
    return rank.outcome == RankOutcome::kLost && rank.failure.has_value();
  });
}

}  // namespace

absl::StatusOr<AttemptChange> TakeEvents(const JobRecord& job, const AttemptRecord& attempt,
                                         int rank, const std::vector<RankEventRecord>& events,
                                         const InSeries& in_series, absl::Time now) {
  AttemptChange result{.change = {.job = job}, .attempt = attempt, .time = now};
  EventTaker taker(result, rank, in_series, now);
  int64_t acked = attempt.ranks[rank].acked_sequence;
  for (const RankEventRecord& event : events) {
    const int64_t last = LastSequenceOf(event);
    if (last <= acked) continue;
    const auto* run = std::get_if<MetricRun>(&event.what);
    if (run != nullptr && event.sequence <= acked) {  // its beginning is stored
      const auto known = static_cast<size_t>(acked + 1 - event.sequence);
      RankEventRecord rest{.sequence = acked + 1, .time = event.time};
      rest.what = SliceRun(*run, known, run->steps.size() - known);
      TY_RETURN_IF_ERROR(taker.Take(rest));
      acked = last;
      continue;
    }
    if (event.sequence != acked + 1) {
      return absl::InvalidArgumentError(absl::StrCat("events of rank ", rank, ": found sequence ",
                                                     event.sequence, ", expected ", acked + 1));
    }
    TY_RETURN_IF_ERROR(taker.Take(event));
    acked = last;
  }
  BumpVersionIfDesiredChanged(result, job);
  return result;
}

AttemptChange FailStart(const JobRecord& job, const AttemptRecord& attempt, int rank,
                        const FailureRecord& failure, absl::Time now) {
  AttemptChange result{.change = {.job = job}, .attempt = attempt, .time = now};
  RankRecord& late = result.attempt.ranks[rank];
  if (job.state != JobState::kStarting || late.state != RankState::kAssigned ||
      late.outcome != RankOutcome::kNone) {
    return result;
  }
  late.outcome = RankOutcome::kFailed;
  late.failure = failure;
  result.wishes_changed = true;
  ApplyVerdict(result, std::nullopt, now);
  BumpVersionIfDesiredChanged(result, job);
  return result;
}

AttemptChange DropRanks(const JobRecord& job, const AttemptRecord& attempt,
                        const std::vector<int>& ranks, RankOutcome outcome, absl::Time now) {
  AttemptChange result{.change = {.job = job}, .attempt = attempt, .time = now};
  for (RankRecord& rank : result.attempt.ranks) {
    const bool named = std::find(ranks.begin(), ranks.end(), rank.id.rank) != ranks.end();
    if (!named || IsOver(rank.state)) continue;
    if (rank.outcome == RankOutcome::kNone) {
      rank.outcome = outcome;
      if (outcome == RankOutcome::kLost) {
        // A job that is being moved off a node (drained, cordoned) may have taken it down as well.
        const bool leaves =
            job.state == JobState::kSuspending && job.suspend_cause != SuspendCause::kUser;
        const bool runs =
            leaves || job.state == JobState::kStarting || job.state == JobState::kRunning;
        const bool counts = runs && !AnyNodeLost(result.attempt);
        if (counts) result.change.job.losses += 1;
        rank.failure = LossOf(rank);
        rank.failure->had_restored = rank.state == RankState::kRunning;
        rank.failure->counted = counts;
      }
    }
    // An older agent, which has no uid, kills its ranks when its lease ends; those of a newer one
    // may live on.
    const bool may_live = outcome == RankOutcome::kLost && !rank.claim.node_uid.empty();
    rank.state = may_live ? RankState::kLost : RankState::kGone;
    rank.gone_time = now;
    result.wishes_changed = true;
  }
  if (result.wishes_changed) ApplyVerdict(result, std::nullopt, now);
  BumpVersionIfDesiredChanged(result, job);
  return result;
}

AttemptChange RejoinRanks(const JobRecord& job, const AttemptRecord& attempt, absl::Time now) {
  AttemptChange result{.change = {.job = job}, .attempt = attempt, .time = now};
  bool counted = false;
  for (RankRecord& rank : result.attempt.ranks) {
    counted |= rank.failure.has_value() && rank.failure->counted;
    rank.state = RankState::kRunning;
    rank.outcome = RankOutcome::kNone;
    rank.failure.reset();
    rank.gone_time = absl::InfinitePast();
  }
  result.attempt.end_time = absl::InfinitePast();
  result.wishes_changed = true;
  JobRecord& rejoined = result.change.job;
  // If the job ended and was resumed since, its losses were counted anew: nothing is given back.
  if (counted && job.losses > 0) {
    if (job.losses > kFreeLosses && job.restarts > 0) rejoined.restarts -= 1;  // JudgeLoss took it
    rejoined.losses -= 1;
  }
  if (job.failure.has_value() && job.failure->category == "LOST") rejoined.failure.reset();
  rejoined.avoid_node.clear();
  MoveJob(result.change, JobTrigger::kRejoin,
          {reason::kRunning, absl::StrCat("nodes/", attempt.ranks[0].node,
                                          " is heard of again, and the job runs on")},
          now);
  return result;
}

JobChange EndCancelled(const JobRecord& job, const AttemptRecord& attempt, absl::Time now) {
  JobChange change{.job = job};
  if (job.state != JobState::kCancelling || !AllOver(attempt)) return change;
  MoveJob(change, JobTrigger::kRanksGone, job.reason, now);
  return change;
}

}  // namespace trainyard
