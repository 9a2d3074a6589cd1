// The meaning of a worker's exit code when it could say no more, against executor/run's constants.

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace trainyard
