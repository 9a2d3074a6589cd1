// The meaning of a worker's exit code when it could say no more, against executor/run's constants.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "executor/run/run_directory.h"
#include "storage/records/change.h"

namespace trainyard {
namespace {

RankRecord RankAfter(const RankExited& exited, JobState state = JobState::kRunning) {
  JobRecord job;
  job.uid = "u";
  job.attempt = 1;
  job.state = state;
  AttemptRecord attempt;
  attempt.attempt = 1;
  attempt.ranks.push_back({.id = {"u", 1, 0}, .node = "n", .state = RankState::kRunning});
  const auto change = TakeEvents(
      job, attempt, 0, {{1, absl::UnixEpoch(), exited}}, [](int64_t, MetricSplit) { return false; },
      absl::UnixEpoch());
  EXPECT_TRUE(change.ok()) << change.status();
  return change->attempt.ranks[0];
}

void ExpectFailure(int exit_code, const char* category, bool retryable) {
  const RankRecord rank = RankAfter({.exit_code = exit_code, .evidence = "last \xff words"});
  ASSERT_TRUE(rank.failure.has_value()) << exit_code;
  EXPECT_EQ(rank.outcome, RankOutcome::kFailed);
  EXPECT_EQ(rank.failure->category, category);
  EXPECT_EQ(rank.failure->retryable, retryable);
  EXPECT_EQ(rank.failure->node, "n");
  EXPECT_NE(rank.failure->message.find("last \uFFFD words"), std::string::npos);
}

TEST(ExitCodes, AreTranslated) {
  ExpectFailure(run::kExitDone, "INTERNAL", true);  // without Finished, zero is no success
  ExpectFailure(run::kExitUsage, "USER", false);
  ExpectFailure(run::kExitData, "USER", false);
  ExpectFailure(run::kExitInternal, "INTERNAL", true);
  ExpectFailure(run::kExitDevice, "DEVICE", true);
  ExpectFailure(run::kExitStorage, "STORAGE", true);
  ExpectFailure(run::kExitNumeric, "NUMERIC", false);
  ExpectFailure(run::kExitGang, "PEER", true);
  ExpectFailure(1, "INTERNAL", true);
  EXPECT_EQ(RankAfter({.exit_code = run::kExitFenced}).outcome, RankOutcome::kLost);
}

TEST(ExitCodes, SignalsAndLossesAreRetryable) {
  const RankRecord killed = RankAfter({.signal = 9});
  EXPECT_EQ(killed.failure->category, "LOST");
  EXPECT_TRUE(killed.failure->retryable);
  EXPECT_NE(killed.failure->message.find("signal 9 (SIGKILL)"), std::string::npos);
  EXPECT_EQ(RankAfter({.lost = true}).failure->category, "LOST");
}

TEST(ExitCodes, KillsThatWereAskedForAreNoFailure) {
  EXPECT_EQ(RankAfter({.signal = 9}, JobState::kCancelling).outcome, RankOutcome::kKilled);
  EXPECT_EQ(RankAfter({.exit_code = 1}, JobState::kCancelling).outcome, RankOutcome::kKilled);
  EXPECT_EQ(RankAfter({.signal = 15}, JobState::kSuspending).outcome, RankOutcome::kKilled);
  EXPECT_EQ(RankAfter({.signal = 11}, JobState::kSuspending).outcome, RankOutcome::kFailed);
  EXPECT_EQ(RankAfter({.exit_code = 74}, JobState::kSuspending).outcome, RankOutcome::kFailed);
}

// How rank 1 of a gang leaves of which rank 0 has just said that rank 1 ended.
AttemptRecord GangAfter(const RankExited& exited) {
  JobRecord job;
  job.uid = "u";
  job.attempt = 1;
  job.state = JobState::kRunning;
  AttemptRecord attempt;
  attempt.attempt = 1;
  attempt.world_size = 2;
  for (const int rank : {0, 1}) {
    attempt.ranks.push_back(
        {.id = {"u", 1, rank}, .node = absl::StrCat("n", rank), .state = RankState::kRunning});
  }
  attempt.ranks[0].outcome = RankOutcome::kFailed;
  attempt.ranks[0].failure =
      FailureRecord{.category = kPeerCategory, .message = "rank 1 ended", .retryable = true};
  const auto change = TakeEvents(
      job, attempt, 1, {{1, absl::UnixEpoch(), exited}}, [](int64_t, MetricSplit) { return false; },
      absl::UnixEpoch());
  EXPECT_TRUE(change.ok()) << change.status();
  return change->attempt;
}

TEST(ExitCodes, ARankThatItsAgentDidNotKillHasFailedAlthoughAnotherSaidSoFirst) {
  const AttemptRecord killed = GangAfter({.signal = 9, .killed = false});
  EXPECT_EQ(killed.ranks[1].outcome, RankOutcome::kFailed);
  ASSERT_TRUE(killed.ranks[1].failure.has_value());
  EXPECT_EQ(killed.ranks[1].failure->category, "LOST");
  EXPECT_EQ(killed.ranks[1].failure->node, "n1");
  EXPECT_EQ(GangAfter({.signal = 9, .killed = true}).ranks[1].outcome, RankOutcome::kKilled);
  EXPECT_EQ(GangAfter({.signal = 9}).ranks[1].outcome, RankOutcome::kKilled) << "of an older agent";
}

}  // namespace
}  // namespace trainyard
