#include "storage/records/attempt.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "storage/records/change.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

JobRecord Job(JobState state, SuspendCause cause = SuspendCause::kNone) {
  JobRecord job;
  job.uid = "u";
  job.attempt = 1;
  job.state = state;
  job.suspend_cause = cause;
  job.reason = {"GIVEN", "as it was"};
  job.max_restarts = 3;
  job.backoff = absl::Seconds(1);
  job.suspend_deadline = absl::FromUnixSeconds(100);
  return job;
}

RankRecord Rank(RankState state, RankOutcome outcome, bool retryable = true) {
  RankRecord rank;
  rank.node = "n";
  rank.state = state;
  rank.outcome = outcome;
  rank.gone_time = absl::UnixEpoch();
  if (outcome == RankOutcome::kFailed) {
    rank.failure = FailureRecord{"DEVICE", "it broke", retryable, 0, "n"};
  }
  return rank;
}

RankRecord Gone(RankOutcome outcome, bool retryable = true) {
  return Rank(RankState::kGone, outcome, retryable);
}

AttemptRecord Attempt(std::vector<RankRecord> ranks) {
  AttemptRecord attempt;
  attempt.attempt = 1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].id = {"u", 1, static_cast<int>(i)};
    if (ranks[i].failure) ranks[i].failure->rank = static_cast<int>(i);
  }
  attempt.ranks = std::move(ranks);
  return attempt;
}

// What every mix of ends means, by state.
struct Case {
  const char* name;
  JobState state;
  SuspendCause cause;
  std::vector<RankRecord> ranks;
  std::optional<JobTrigger> trigger;
  const char* code;
  bool spends = false;
};

const RankRecord kUp = Rank(RankState::kRunning, RankOutcome::kNone);
const RankRecord kAssigned = Rank(RankState::kAssigned, RankOutcome::kNone);
using S = JobState;
using C = SuspendCause;
using O = RankOutcome;
using T = JobTrigger;

const Case kCases[] = {
    {"waits", S::kStarting, C::kNone, {kUp, kAssigned}, std::nullopt, ""},
    {"up", S::kStarting, C::kNone, {kUp, kUp}, T::kFirstStep, reason::kRunning},
    {"steps", S::kRunning, C::kNone, {kUp, kUp}, std::nullopt, ""},
    {"half done", S::kRunning, C::kNone, {kUp, Gone(O::kSucceeded)}, std::nullopt, ""},
    {"done",
     S::kRunning,
     C::kNone,
     {Gone(O::kSucceeded), Gone(O::kSucceeded)},
     T::kSucceed,
     reason::kFinished},
    {"done though cancelled",
     S::kCancelling,
     C::kNone,
     {Gone(O::kSucceeded)},
     T::kSucceed,
     reason::kFinished},
    {"done though paused",
     S::kSuspending,
     C::kUser,
     {Gone(O::kSucceeded)},
     T::kSucceed,
     reason::kFinished},
    {"cancelled",
     S::kCancelling,
     C::kNone,
     {Gone(O::kKilled), Gone(O::kSucceeded)},
     T::kRanksGone,
     "GIVEN"},
    {"cancelled and failed",
     S::kCancelling,
     C::kNone,
     {Gone(O::kFailed, false)},
     T::kRanksGone,
     "GIVEN"},
    {"paused",
     S::kSuspending,
     C::kUser,
     {Gone(O::kSuspended), Gone(O::kSuspended)},
     T::kSuspendedOk,
     "GIVEN"},
    {"pause killed", S::kSuspending, C::kUser, {Gone(O::kKilled)}, T::kSuspendedOk, "GIVEN"},
    {"pause lost", S::kSuspending, C::kUser, {Gone(O::kLost)}, T::kSuspendedOk, "GIVEN"},
    {"pause failed", S::kSuspending, C::kUser, {Gone(O::kFailed)}, T::kSuspendedOk, "GIVEN"},
    {"pause failed for good",
     S::kSuspending,
     C::kUser,
     {Gone(O::kFailed, false)},
     T::kFail,
     reason::kRankFailed},
    {"preempted", S::kSuspending, C::kPreempted, {Gone(O::kSuspended)}, T::kPreempt, "GIVEN"},
    {"drained, killed", S::kSuspending, C::kDrained, {Gone(O::kKilled)}, T::kPreempt, "GIVEN"},
    {"resumed meanwhile", S::kSuspending, C::kNone, {Gone(O::kSuspended)}, T::kPreempt, "GIVEN"},
    {"preempted, failed",
     S::kSuspending,
     C::kPreempted,
     {Gone(O::kFailed)},
     T::kRetry,
     reason::kBackoff,
     true},
    {"failed",
     S::kRunning,
     C::kNone,
     {Gone(O::kFailed), Gone(O::kKilled)},
     T::kRetry,
     reason::kBackoff,
     true},
    {"failed at start",
     S::kStarting,
     C::kNone,
     {Gone(O::kFailed)},
     T::kRetry,
     reason::kBackoff,
     true},
    {"failed for good",
     S::kRunning,
     C::kNone,
     {Gone(O::kFailed), Gone(O::kFailed, false)},
     T::kFail,
     reason::kRankFailed},
    {"lost",
     S::kRunning,
     C::kNone,
     {Gone(O::kLost), Gone(O::kKilled)},
     T::kRetry,
     reason::kNodeLost},
    {"failed by a loss",
     S::kRunning,
     C::kNone,
     {Gone(O::kLost), Gone(O::kFailed)},
     T::kRetry,
     reason::kNodeLost},
    {"lost, and failed for good",
     S::kRunning,
     C::kNone,
     {Gone(O::kLost), Gone(O::kFailed, false)},
     T::kFail,
     reason::kRankFailed},
    {"told to leave",
     S::kRunning,
     C::kNone,
     {Gone(O::kSuspended)},
     T::kRetry,
     reason::kInterrupted},
};

TEST(EvaluateAttempt, KnowsWhatEveryMixOfEndsMeans) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const JobRecord job = Job(c.state, c.cause);
    const AttemptVerdict verdict = EvaluateAttempt(job, Attempt(c.ranks));
    EXPECT_EQ(verdict.trigger, c.trigger);
    EXPECT_EQ(verdict.reason.code, c.code);
    EXPECT_EQ(verdict.spends_restart, c.spends);
    EXPECT_FALSE(verdict.stop_the_rest);
    EXPECT_TRUE(!verdict.trigger || NextJobState(c.state, *verdict.trigger).has_value());
  }
}

TEST(EvaluateAttempt, EveryMixOfEndsHasALegalTrigger) {
  for (const JobState state : {S::kStarting, S::kRunning, S::kSuspending, S::kCancelling}) {
    for (const SuspendCause cause : {C::kNone, C::kUser, C::kPreempted, C::kDrained}) {
      for (int a = 1; a <= 5; ++a) {
        for (int b = 1; b <= 5; ++b) {
          for (const bool retryable : {true, false}) {
            const AttemptVerdict verdict = EvaluateAttempt(
                Job(state, cause),
                Attempt({Gone(static_cast<O>(a), retryable), Gone(static_cast<O>(b), retryable)}));
            ASSERT_TRUE(verdict.trigger.has_value());
            EXPECT_TRUE(NextJobState(state, *verdict.trigger).has_value());
            EXPECT_FALSE(verdict.reason.code.empty());
          }
        }
      }
    }
  }
}

TEST(EvaluateAttempt, StopsTheRestOfABrokenGang) {
  for (const RankOutcome outcome : {O::kFailed, O::kKilled, O::kLost, O::kSuspended}) {
    EXPECT_TRUE(EvaluateAttempt(Job(S::kRunning), Attempt({Gone(outcome), kUp})).stop_the_rest);
  }
  EXPECT_FALSE(
      EvaluateAttempt(Job(S::kRunning), Attempt({Gone(O::kSucceeded), kUp})).stop_the_rest);
  EXPECT_FALSE(EvaluateAttempt(Job(S::kSuspending, C::kUser), Attempt({Gone(O::kSuspended), kUp}))
                   .stop_the_rest);
}

TEST(EvaluateAttempt, NamesTheFailureThatDecides) {
  AttemptRecord attempt = Attempt({Gone(O::kFailed), Gone(O::kFailed), Gone(O::kKilled)});
  attempt.ranks[0].gone_time += absl::Seconds(1);
  const AttemptVerdict verdict = EvaluateAttempt(Job(S::kRunning), attempt);
  EXPECT_EQ(verdict.failure->rank, 1);
  EXPECT_NE(verdict.reason.message.find("rank 1 on n: DEVICE: it broke"), std::string::npos);
}

TEST(EvaluateAttempt, FailsOnceTheBudgetIsSpent) {
  JobRecord job = Job(S::kRunning);
  job.restarts = 2;
  const AttemptVerdict last = EvaluateAttempt(job, Attempt({Gone(O::kFailed)}));
  EXPECT_EQ(last.trigger, T::kRetry);
  EXPECT_EQ(last.backoff, absl::Seconds(4));
  job.restarts = 3;
  EXPECT_EQ(EvaluateAttempt(job, Attempt({Gone(O::kFailed)})).trigger, T::kFail);
  EXPECT_EQ(EvaluateAttempt(job, Attempt({Gone(O::kFailed)})).reason.code, reason::kRestartsSpent);
  EXPECT_EQ(EvaluateAttempt(job, Attempt({Gone(O::kLost)})).trigger, T::kRetry);  // losses are free
}

// Whoever is out of restarts may still go back to a checkpoint: the worker counts those.
TEST(EvaluateAttempt, ARollbackGoesOnAtOnceAndSpendsNothing) {
  JobRecord job = Job(S::kRunning);
  job.restarts = job.max_restarts;
  RankRecord rank = Gone(O::kFailed);
  rank.failure->category = "NUMERIC";
  rank.failure->rolled_back = true;
  const AttemptVerdict verdict = EvaluateAttempt(job, Attempt({rank}));
  EXPECT_EQ(verdict.trigger, T::kRetry);
  EXPECT_EQ(verdict.reason.code, reason::kRolledBack);
  EXPECT_EQ(verdict.backoff, absl::ZeroDuration());
  EXPECT_FALSE(verdict.spends_restart);
  job.state = S::kSuspending;
  job.suspend_cause = C::kUser;
  EXPECT_EQ(EvaluateAttempt(job, Attempt({rank})).trigger, T::kSuspendedOk);
}

TEST(EvaluateAttempt, NumbersThatAreNoneHaveAReasonOfTheirOwn) {
  RankRecord rank = Gone(O::kFailed, false);
  rank.failure->category = "NUMERIC";
  EXPECT_EQ(EvaluateAttempt(Job(S::kRunning), Attempt({rank})).reason.code, reason::kNonFinite);
}

TEST(EvaluateAttempt, ASuccessKeepsTheReasonWhyItCameEarly) {
  JobRecord job = Job(S::kRunning);
  job.reason = {reason::kStoppedEarly, "early stopping: ..."};
  EXPECT_EQ(EvaluateAttempt(job, Attempt({Gone(O::kSucceeded)})).reason, job.reason);
  EXPECT_EQ(EvaluateAttempt(Job(S::kRunning), Attempt({Gone(O::kSucceeded)})).reason.code,
            reason::kFinished);
}

TEST(RestartBackoff, DoublesUpToFiveMinutes) {
  EXPECT_EQ(RestartBackoff(absl::Seconds(1), 1), absl::Seconds(1));
  EXPECT_EQ(RestartBackoff(absl::Seconds(1), 4), absl::Seconds(8));
  EXPECT_EQ(RestartBackoff(absl::Seconds(1), 1000), absl::Minutes(5));
  EXPECT_EQ(RestartBackoff(absl::Hours(1), 1), absl::Minutes(5));
  EXPECT_EQ(RestartBackoff(absl::ZeroDuration(), 1000), absl::ZeroDuration());
}

TEST(DesiredStateOf, FollowsTheJobsState) {
  const absl::Time now = absl::UnixEpoch();
  const auto wish = [&](JobState state, std::vector<RankRecord> ranks, absl::Time when) {
    const AttemptRecord attempt = Attempt(std::move(ranks));
    return DesiredStateOf(Job(state, C::kUser), attempt, attempt.ranks[0], when);
  };
  EXPECT_EQ(wish(S::kStarting, {kAssigned}, now), DesiredRankState::kRun);
  EXPECT_EQ(wish(S::kRunning, {kUp}, now), DesiredRankState::kRun);
  EXPECT_EQ(wish(S::kRunning, {kUp, Gone(O::kFailed)}, now), DesiredRankState::kStop);
  EXPECT_EQ(wish(S::kRunning, {Gone(O::kSucceeded)}, now), DesiredRankState::kStop);
  EXPECT_EQ(wish(S::kSuspending, {kUp, kUp}, now), DesiredRankState::kSuspend);
  EXPECT_EQ(wish(S::kSuspending, {kUp, Gone(O::kSuspended)}, now), DesiredRankState::kSuspend);
  EXPECT_EQ(wish(S::kSuspending, {kUp, kAssigned}, now), DesiredRankState::kStop);
  EXPECT_EQ(wish(S::kSuspending, {kUp}, absl::FromUnixSeconds(100)), DesiredRankState::kStop);
  EXPECT_EQ(wish(S::kCancelling, {kUp}, now), DesiredRankState::kStop);
  EXPECT_EQ(wish(S::kQueued, {kUp}, now), DesiredRankState::kStop);
}

// Whatever becomes of a gang: as long as a rank's text is the same, so is the wish for it.
TEST(DesiredStateKey, TheSameTextMeansTheSameWish) {
  const absl::Time now = absl::UnixEpoch();
  const InSeries none = [](int64_t, MetricSplit) { return false; };
  std::set<DesiredRankState> wishes;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    JobRecord job = Job(random() % 2 == 0 ? S::kStarting : S::kRunning);
    job.total_steps = 10;
    AttemptRecord attempt = Attempt(std::vector<RankRecord>(1 + random() % 3, kUp));
    attempt.world_size = static_cast<int>(attempt.ranks.size());
    std::map<std::string, DesiredRankState> known;
    for (int change = 0; change < 6; ++change) {
      for (const RankRecord& rank : attempt.ranks) {
        if (rank.state == RankState::kGone) continue;
        DesiredStateKey text;
        text.Add(rank.id, attempt.world_size, job.state, rank.outcome, job.version);
        const DesiredRankState wish = DesiredStateOf(job, attempt, rank, now);
        if (!text.Text().empty()) {
          EXPECT_EQ(known.emplace(text.Text(), wish).first->second, wish) << seed;
        }
        wishes.insert(wish);
      }
      const int rank = static_cast<int>(random() % attempt.ranks.size());
      if (attempt.ranks[rank].state == RankState::kGone) continue;
      RankEventRecord event{.sequence = attempt.ranks[rank].acked_sequence + 1};
      switch (random() % 5) {
        case 0:
          event.what = FailureRecord{.category = "USER", .message = "no"};
          break;
        case 1:
          event.what = RankExited{.exit_code = 1};
          break;
        case 2:
          event.what = RankFinished{.suspended = random() % 2 == 0, .step = job.total_steps};
          break;
        case 3:
          event.what = NoticeRecord{.message = "hello"};
          break;
        default:
          event.what = RankExited{.lost = true};
      }
      absl::StatusOr<AttemptChange> next = TakeEvents(job, attempt, rank, {event}, none, now);
      ASSERT_TRUE(next.ok()) << next.status();
      job = next->change.job;
      attempt = next->attempt;
    }
  }
  EXPECT_EQ(wishes.size(), 2u);  // to run and to stop: both were met
}

}  // namespace
}  // namespace trainyard
