#include "storage/records/attempt.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/enum_names.h"
#include "storage/base/status.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

constexpr std::pair<RankState, const char*> kRankStates[] = {
    {RankState::kAssigned, "ASSIGNED"},
    {RankState::kRunning, "RUNNING"},
    {RankState::kLost, "LOST"},
    {RankState::kGone, "GONE"},
};

constexpr std::pair<RankOutcome, const char*> kRankOutcomes[] = {
    {RankOutcome::kNone, "NONE"},           {RankOutcome::kSucceeded, "SUCCEEDED"},
    {RankOutcome::kSuspended, "SUSPENDED"}, {RankOutcome::kFailed, "FAILED"},
    {RankOutcome::kKilled, "KILLED"},       {RankOutcome::kLost, "LOST"},
};

constexpr absl::Duration kLongestBackoff = absl::Minutes(5);

int CountOutcome(const AttemptRecord& attempt, RankOutcome outcome) {
  return static_cast<int>(
      std::count_if(attempt.ranks.begin(), attempt.ranks.end(),
                    [outcome](const RankRecord& rank) { return rank.outcome == outcome; }));
}

// Whether no rank is ASSIGNED any more: each has restored, or is over.
bool AllRanksRestored(const AttemptRecord& attempt) {
  return std::none_of(attempt.ranks.begin(), attempt.ranks.end(),
                      [](const RankRecord& rank) { return rank.state == RankState::kAssigned; });
}

// Whether the gang cannot go on: a rank left, or will leave, without having finished.
bool GangBroken(const JobRecord& job, const AttemptRecord& attempt) {
  const bool suspended_unasked =
      job.state != JobState::kSuspending && CountOutcome(attempt, RankOutcome::kSuspended) > 0;
  return suspended_unasked || CountOutcome(attempt, RankOutcome::kFailed) > 0 ||
         CountOutcome(attempt, RankOutcome::kKilled) > 0 ||
         CountOutcome(attempt, RankOutcome::kLost) > 0;
}

// The failure that decides the attempt: one that is not retryable before others, one that is no
// echo of another's before those, then that of the rank that was gone first.
const FailureRecord* DecidingFailure(const AttemptRecord& attempt) {
  const RankRecord* first = nullptr;
  for (const RankRecord& rank : attempt.ranks) {
    if (rank.outcome != RankOutcome::kFailed || !rank.failure.has_value()) continue;
    const auto key = [](const RankRecord& r) {
      return std::make_tuple(r.failure->retryable, r.failure->category == kPeerCategory,
                             r.gone_time);
    };
    if (first == nullptr || key(rank) < key(*first)) first = &rank;
  }
  return first == nullptr ? nullptr : &*first->failure;
}

std::string Describe(const FailureRecord& failure) {
  return absl::StrCat("rank ", failure.rank, " on ", failure.node, ": ", failure.category, ": ",
                      failure.message);
}

AttemptVerdict JudgeLoss(const JobRecord& job, const AttemptRecord& attempt) {
  // Preferably one whose node was lost, not one that fenced itself.
  const RankRecord* lost = nullptr;
  for (const RankRecord& rank : attempt.ranks) {
    if (rank.outcome != RankOutcome::kLost) continue;
    if (lost == nullptr || (!lost->failure.has_value() && rank.failure.has_value())) lost = &rank;
  }
  AttemptVerdict verdict;
  verdict.trigger = JobTrigger::kRetry;
  verdict.failure = LossOf(*lost);
  const std::string what = Describe(*verdict.failure);
  if (!lost->failure.has_value() || job.losses <= kFreeLosses) {
    verdict.reason = {reason::kNodeLost, absl::StrCat(what, "; the job goes on elsewhere")};
    return verdict;
  }
  const std::string blame = absl::StrCat(what, "; ", job.losses,
                                         " nodes were lost under the job in a row without a newer "
                                         "checkpoint, so this counts as a restart");
  if (job.restarts >= job.max_restarts) {
    verdict.trigger = JobTrigger::kFail;
    verdict.reason = {reason::kRestartsSpent,
                      absl::StrCat(blame, "; all ", job.max_restarts, " restarts are used up")};
    return verdict;
  }
  verdict.spends_restart = true;
  verdict.backoff = RestartBackoff(job.backoff, job.restarts + 1);
  verdict.reason = {reason::kBackoff,
                    absl::StrCat(blame, ", ", job.restarts + 1, " of ", job.max_restarts, ", in ",
                                 absl::FormatDuration(verdict.backoff))};
  return verdict;
}

AttemptVerdict JudgeFailure(const JobRecord& job, const FailureRecord& failure) {
  AttemptVerdict verdict;
  verdict.failure = failure;
  if (!failure.retryable) {
    verdict.trigger = JobTrigger::kFail;
    verdict.reason = {failure.category == "NUMERIC" ? reason::kNonFinite : reason::kRankFailed,
                      Describe(failure)};
  } else if (failure.rolled_back) {
    verdict.trigger = JobTrigger::kRetry;
    verdict.reason = {reason::kRolledBack, failure.message};
  } else if (job.restarts >= job.max_restarts) {
    verdict.trigger = JobTrigger::kFail;
    verdict.reason = {
        reason::kRestartsSpent,
        absl::StrCat(Describe(failure), "; all ", job.max_restarts, " restarts are used up")};
  } else {
    verdict.trigger = JobTrigger::kRetry;
    verdict.spends_restart = true;
    verdict.backoff = RestartBackoff(job.backoff, job.restarts + 1);
    verdict.reason = {
        reason::kBackoff,
        absl::StrCat(Describe(failure), "; restart ", job.restarts + 1, " of ", job.max_restarts,
                     " in ", absl::FormatDuration(verdict.backoff))};
  }
  return verdict;
}

AttemptVerdict JudgeOver(const JobRecord& job, const AttemptRecord& attempt) {
  AttemptVerdict verdict;
  const int ranks = static_cast<int>(attempt.ranks.size());
  if (CountOutcome(attempt, RankOutcome::kSucceeded) == ranks) {
    verdict.trigger = JobTrigger::kSucceed;
    verdict.reason = job.reason;  // STOPPED_EARLY, as RankFinished set it
    if (job.reason.code == reason::kStoppedEarly) return verdict;
    verdict.reason = {reason::kFinished, ranks == 1
                                             ? "the rank finished"
                                             : absl::StrCat("all ", ranks, " ranks finished")};
    return verdict;
  }
  if (job.state == JobState::kCancelling) {
    // A lost rank may still compute, and CANCELLED promises that none does.
    if (AnyLost(attempt) || attempt.lost_before) return verdict;
    verdict.trigger = JobTrigger::kRanksGone;
    verdict.reason = job.reason;
    return verdict;
  }
  const FailureRecord* failure = DecidingFailure(attempt);
  const bool paused = job.suspend_cause == SuspendCause::kUser;
  const bool lost = CountOutcome(attempt, RankOutcome::kLost) > 0;
  const bool retryable = failure == nullptr || failure->retryable;
  // A job that is being moved off a node still pays for the nodes that were lost under it.
  if (lost && retryable && !paused && job.losses > kFreeLosses) return JudgeLoss(job, attempt);
  const bool resizing = IsResizing(job);
  if (job.state == JobState::kSuspending &&
      (failure == nullptr || ((paused || resizing) && failure->retryable))) {
    // A pause holds even when the last checkpoint failed: resuming goes on from the one before. So
    // does a job whose number of slots changes, which did not ask for it and pays nothing.
    verdict.trigger = paused ? JobTrigger::kSuspendedOk : JobTrigger::kPreempt;
    verdict.reason = job.reason;
    if (failure != nullptr) verdict.failure = *failure;
    return verdict;
  }
  // If a node was lost, the other ranks failed because their peer was gone: the loss decides, not
  // their failures.
  if (lost && retryable) return JudgeLoss(job, attempt);
  if (failure != nullptr) return JudgeFailure(job, *failure);
  verdict.trigger = JobTrigger::kRetry;
  verdict.backoff = RestartBackoff(job.backoff, 1);
  verdict.reason = {
      reason::kInterrupted,
      "its processes were told to leave by somebody else; it goes on from its checkpoint"};
  return verdict;
}

}  // namespace

bool AnyLost(const AttemptRecord& attempt) {
  return std::any_of(attempt.ranks.begin(), attempt.ranks.end(),
                     [](const RankRecord& rank) { return rank.state == RankState::kLost; });
}

bool AllOver(const AttemptRecord& attempt) {
  return std::all_of(attempt.ranks.begin(), attempt.ranks.end(),
                     [](const RankRecord& rank) { return IsOver(rank.state); });
}

bool MayRejoin(const JobRecord& job, const AttemptRecord& attempt, const AgentIdentity& agent,
               const std::vector<RunningRank>& running) {
  if (job.state != JobState::kQueued || attempt.attempt != job.attempt) return false;
  return std::all_of(attempt.ranks.begin(), attempt.ranks.end(), [&](const RankRecord& rank) {
    return rank.state == RankState::kLost && rank.outcome == RankOutcome::kLost &&
           rank.failure.has_value() && rank.failure->had_restored && rank.node == agent.node &&
           HasClaim(agent, rank.claim) &&
           std::any_of(running.begin(), running.end(), [&rank](const RunningRank& one) {
             return one.id == rank.id && one.claim == rank.claim.token;
           });
  });
}

absl::string_view BootOf(absl::string_view instance) {
  return instance.substr(0, instance.find(':'));
}

absl::string_view MachineOf(absl::string_view instance) {
  const std::vector<absl::string_view> parts = absl::StrSplit(instance, ':');
  return parts.size() < 4 ? "" : parts[3];
}

bool SameInstance(absl::string_view a, absl::string_view b) {
  const std::vector<absl::string_view> of_a = absl::StrSplit(a, ':'), of_b = absl::StrSplit(b, ':');
  if (of_a.size() < 3 || of_b.size() < 3) return a == b;
  const absl::string_view machine = MachineOf(a), other = MachineOf(b);
  return std::equal(of_a.begin(), of_a.begin() + 3, of_b.begin()) &&
         (machine.empty() || other.empty() || machine == other);
}

bool HasClaim(const AgentIdentity& agent, const Claim& claim) {
  return agent.uid == claim.node_uid && SameInstance(agent.instance, claim.instance);
}

bool CanProveGone(const AgentIdentity& agent, const Claim& claim) {
  if (HasClaim(agent, claim)) return true;
  const auto differ = [](absl::string_view a, absl::string_view b) {
    return !a.empty() && !b.empty() && a != b;
  };
  const absl::string_view machine = MachineOf(agent.instance);
  return agent.uid == claim.node_uid && !machine.empty() && machine == MachineOf(claim.instance) &&
         differ(BootOf(agent.instance), BootOf(claim.instance));
}

FailureRecord LossOf(const RankRecord& rank) {
  return {.category = "LOST",
          .message = absl::StrCat("the lease of ", rank.node, " ended"),
          .retryable = true,
          .rank = rank.id.rank,
          .node = rank.node};
}

absl::string_view RankStateName(RankState state) { return NameIn(kRankStates, state); }

std::optional<RankState> ParseRankState(absl::string_view name) {
  return ValueIn(kRankStates, name);
}

absl::string_view RankOutcomeName(RankOutcome outcome) { return NameIn(kRankOutcomes, outcome); }

std::optional<RankOutcome> ParseRankOutcome(absl::string_view name) {
  return ValueIn(kRankOutcomes, name);
}

std::vector<std::string> NodesOf(const AttemptRecord& attempt) {
  std::set<std::string> nodes;
  for (const RankRecord& rank : attempt.ranks) nodes.insert(rank.node);
  return {nodes.begin(), nodes.end()};
}

std::vector<RankSlots> SlotsOf(const AttemptRecord& attempt) {
  std::vector<RankSlots> slots;
  for (const RankRecord& rank : attempt.ranks) slots.push_back({rank.node, rank.slots});
  return slots;
}

Reason RunningFrom(int64_t step) {
  return {reason::kRunning,
          step == 0 ? "training begins" : absl::StrCat("goes on from step ", step)};
}

AttemptVerdict EvaluateAttempt(const JobRecord& job, const AttemptRecord& attempt) {
  TY_CHECK(!attempt.ranks.empty(), "attempt ", attempt.attempt, " of job ", job.uid,
           " has no rank");
  if (AllOver(attempt)) return JudgeOver(job, attempt);
  AttemptVerdict verdict;
  verdict.stop_the_rest = GangBroken(job, attempt);
  if (!verdict.stop_the_rest && job.state == JobState::kStarting && AllRanksRestored(attempt)) {
    verdict.trigger = JobTrigger::kFirstStep;
    verdict.reason = RunningFrom(attempt.restore_step);
  }
  return verdict;
}

bool MayLeaveState(const JobRecord& job, const AttemptRecord& attempt, const RankRecord& rank) {
  if (!job.second_owner || job.state != JobState::kRunning || rank.state != RankState::kRunning) {
    return false;
  }
  // One of each node does.
  const bool done =
      std::any_of(attempt.ranks.begin(), attempt.ranks.end(), [&rank](const RankRecord& other) {
        return other.node == rank.node && other.id.rank != rank.id.rank &&
               other.failure.has_value() && other.failure->left_state;
      });
  if (done) return false;
  // The job goes on, and not from an older state.
  const bool of_use =
      std::none_of(attempt.ranks.begin(), attempt.ranks.end(), [](const RankRecord& one) {
        return one.failure.has_value() && (!one.failure->retryable || one.failure->rolled_back);
      });
  const bool has_state =
      rank.outcome == RankOutcome::kNone || (rank.failure.has_value() && rank.failure->has_state);
  return of_use && has_state && GangBroken(job, attempt);
}

std::vector<int> SurvivorsOf(const AttemptRecord& attempt) {
  std::vector<int> left;
  for (const RankRecord& rank : attempt.ranks) {
    if (IsOver(rank.state)) continue;
    if (rank.failure.has_value() && rank.failure->has_state) {
      left.push_back(rank.id.rank);
    } else if (rank.outcome == RankOutcome::kNone) {
      return {};
    }
  }
  return left;
}

StateStays StateStaysFor(const JobRecord& job, const AttemptRecord& attempt,
                         const RankRecord& rank) {
  if (MayLeaveState(job, attempt, rank)) return StateStays::kHereAlone;
  if (!IsResizing(job) || job.resize->attempt != attempt.attempt) return StateStays::kInCheckpoint;
  const auto stays = [&](const RankRecord& one) {
    return std::any_of(job.resize->ranks.begin(), job.resize->ranks.end(),
                       [&](const RankSlots& next) { return next.node == one.node; });
  };
  if (stays(rank)) return StateStays::kHere;
  return std::any_of(attempt.ranks.begin(), attempt.ranks.end(), stays) ? StateStays::kElsewhere
                                                                        : StateStays::kInCheckpoint;
}

bool MayTryKeptState(const JobRecord& job, int64_t attempt) {
  return job.resize.has_value() && attempt <= job.resize->attempt + kTriesWithKeptState;
}

bool MayNeedState(const JobRecord& job, int64_t attempt) {
  if (IsTerminal(job.state)) return false;
  const bool between = job.state == JobState::kQueued || job.state == JobState::kSuspended;
  if (job.attempt == attempt && !between) return true;
  return job.resize.has_value() && job.resize->attempt == attempt && job.resize->kept_step > 0 &&
         MayTryKeptState(job, between ? job.attempt + 1 : job.attempt);
}

KeptState KeptStateFor(const JobRecord& job, const AttemptRecord& attempt) {
  // A server of an older version does not count it into restore_step.
  if (!MayTryKeptState(job, attempt.attempt) || job.resize->attempt >= attempt.attempt ||
      job.resize->kept_step != attempt.restore_step || job.resize->kept_step == 0) {
    return {};
  }
  return {.attempt = job.resize->attempt, .step = job.resize->kept_step};
}

DesiredRankState DesiredStateOf(const JobRecord& job, const AttemptRecord& attempt,
                                const RankRecord& rank, absl::Time now) {
  if (job.attempt != attempt.attempt || IsOver(rank.state)) return DesiredRankState::kStop;
  if (GangBroken(job, attempt)) {
    return MayLeaveState(job, attempt, rank) ? DesiredRankState::kSuspend : DesiredRankState::kStop;
  }
  switch (job.state) {
    case JobState::kStarting:
    case JobState::kRunning:
      return DesiredRankState::kRun;
    case JobState::kSuspending:
      // If some rank never restored, there is nothing to save, and a checkpoint would wait for it.
      return AllRanksRestored(attempt) && now < job.suspend_deadline ? DesiredRankState::kSuspend
                                                                     : DesiredRankState::kStop;
    default:
      return DesiredRankState::kStop;
  }
}

void DesiredStateKey::Add(const RankId& rank, int world_size, JobState state, RankOutcome outcome,
                          int64_t job_version) {
  timed_ |= state == JobState::kSuspending;
  const bool runs = state == JobState::kStarting || state == JobState::kRunning;
  absl::StrAppend(&text_, "\n", rank.job_uid, " ", rank.attempt, " ", rank.rank, " ",
                  runs ? "runs" : JobStateName(state), " ");
  // Whether a single rank should run depends on its own outcome; that of a peer, maybe on another
  // node, shows in the job's version (BumpVersionIfDesiredChanged).
  if (world_size == 1) {
    absl::StrAppend(&text_, RankOutcomeName(outcome));
  } else {
    absl::StrAppend(&text_, job_version);
  }
}

absl::StatusOr<AttemptRecord> PickAttempt(const JobRecord& job, int64_t number,
                                          const AttemptRecord* attempt) {
  if (number == 0)
    return absl::NotFoundError(absl::StrCat("job ", job.job_id, " was never placed"));
  if (attempt == nullptr) {
    return absl::NotFoundError(absl::StrCat("job ", job.job_id, " has no attempt ", number,
                                            "; its newest is ", job.attempt));
  }
  return *attempt;
}

absl::StatusOr<RankRecord> PickRank(const JobRecord& job, int64_t number,
                                    const AttemptRecord* attempt, int rank) {
  TY_RETURN_IF_ERROR(PickAttempt(job, number, attempt).status());
  if (rank < 0 || rank >= static_cast<int>(attempt->ranks.size())) {
    return absl::NotFoundError(absl::StrCat("attempt ", number, " of job ", job.job_id,
                                            " has no rank ", rank, "; it has ",
                                            attempt->ranks.size()));
  }
  return attempt->ranks[rank];
}

absl::Duration RestartBackoff(absl::Duration base, int restart) {
  absl::Duration backoff = base;
  for (int i = 1; i < restart && backoff < kLongestBackoff; ++i) backoff *= 2;
  return std::min(backoff, kLongestBackoff);
}

}  // namespace trainyard
