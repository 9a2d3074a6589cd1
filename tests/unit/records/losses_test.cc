// What losses, failures and starts that hang make of a job: change.h.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "storage/records/change.h"
#include "storage/records/node_health.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);
const InSeries kNone = [](int64_t, MetricSplit) { return false; };

JobRecord LossyJob(JobState state = JobState::kRunning) {
  JobRecord job;
  job.uid = "u";
  job.job_id = "job";
  job.attempt = 1;
  job.state = state;
  job.total_steps = 100;
  job.max_restarts = 1;
  return job;
}

AttemptRecord LossyAttempt(std::vector<std::string> nodes, RankState state = RankState::kRunning) {
  AttemptRecord attempt{.job_uid = "u", .attempt = 1};
  attempt.restore_step = 10;
  for (size_t i = 0; i < nodes.size(); ++i) {
    RankRecord& rank = attempt.ranks.emplace_back();
    rank.id = {"u", 1, static_cast<int>(i)};
    rank.node = nodes[i];
    rank.state = state;
  }
  return attempt;
}

AttemptChange Take(const JobRecord& job, const AttemptRecord& attempt,
                   decltype(RankEventRecord::what) what) {
  RankEventRecord event{.sequence = attempt.ranks[0].acked_sequence + 1, .time = kNow};
  event.what = std::move(what);
  absl::StatusOr<AttemptChange> change = TakeEvents(job, attempt, 0, {event}, kNone, kNow);
  EXPECT_TRUE(change.ok()) << change.status();
  return *std::move(change);
}

AttemptChange LoseNode(const JobRecord& job) {
  return DropRanks(job, LossyAttempt({"n"}), {0}, RankOutcome::kLost, kNow);
}

TEST(Losses, TwoAreFreeAndEachBeyondSpendsARestart) {
  JobRecord job = LossyJob();
  for (int loss = 1; loss <= kFreeLosses; ++loss) {
    job = LoseNode(job).change.job;
    EXPECT_EQ(job.state, JobState::kQueued);
    EXPECT_EQ(job.restarts, 0) << loss;
    EXPECT_EQ(job.reason.code, reason::kNodeLost);
    job.state = JobState::kRunning;
  }
  job = LoseNode(job).change.job;
  EXPECT_EQ(job.restarts, 1);
  EXPECT_EQ(job.reason.code, reason::kBackoff);
  EXPECT_TRUE(absl::StrContains(job.reason.message, "3 nodes were lost under the job in a row"))
      << job.reason.message;
  job.state = JobState::kRunning;
  job = LoseNode(job).change.job;
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_EQ(job.reason.code, reason::kRestartsSpent);
  EXPECT_TRUE(absl::StrContains(job.reason.message, "without a newer checkpoint"))
      << job.reason.message;
}

TEST(Losses, WhatRejoinsHasItsRestartBack) {
  JobRecord job = LossyJob();
  AttemptRecord attempt = LossyAttempt({"n"});
  attempt.ranks[0].claim.node_uid = "agent";
  for (int loss = 1; loss <= kFreeLosses + 3; ++loss) {
    job.losses = kFreeLosses;
    const AttemptChange lost = DropRanks(job, attempt, {0}, RankOutcome::kLost, kNow);
    EXPECT_EQ(lost.change.job.restarts, 1) << "this one is charged";
    EXPECT_TRUE(MayRejoin(lost.change.job, lost.attempt, {"n", "agent", ""}, {{{"u", 1, 0}, ""}}));
    const AttemptChange back = RejoinRanks(lost.change.job, lost.attempt, kNow);
    job = back.change.job;
    EXPECT_EQ(job.state, JobState::kRunning);
    EXPECT_EQ(job.restarts, 0);
    EXPECT_EQ(job.losses, kFreeLosses);
    EXPECT_EQ(job.not_before, absl::InfinitePast()) << "it does not wait for its backoff";
    EXPECT_EQ(RejoinedRanks(lost.attempt, back.attempt).size(), 1u);
    EXPECT_TRUE(RejoinedRanks(attempt, lost.attempt).empty());
    attempt = back.attempt;
  }
}

TEST(Losses, ANewerCheckpointMakesThemCountAnew) {
  JobRecord job = LossyJob();
  job.losses = 2;
  CheckpointWritten written;
  written.checkpoint.step = 10;
  EXPECT_EQ(Take(job, LossyAttempt({"n"}), written).change.job.losses, 2) << "no newer one";
  written.checkpoint.step = 11;
  EXPECT_EQ(Take(job, LossyAttempt({"n"}), written).change.job.losses, 0);
}

TEST(Losses, AGangThatLosesTwoNodesWasLostOnce) {
  JobRecord job = LossyJob();
  const AttemptChange first =
      DropRanks(job, LossyAttempt({"n", "m"}), {0}, RankOutcome::kLost, kNow);
  EXPECT_EQ(first.change.job.losses, 1);
  const AttemptChange second =
      DropRanks(first.change.job, first.attempt, {1}, RankOutcome::kLost, kNow);
  EXPECT_EQ(second.change.job.losses, 1);
  EXPECT_EQ(second.change.job.state, JobState::kQueued);
}

// A sick node is cordoned and its jobs leave it. One that takes its nodes down is suspended each
// time before the loss of the node is noticed, and would go on for ever.
TEST(Losses, AJobThatIsMovedAwayMeanwhileDoesNotEscapeThem) {
  JobRecord job = LossyJob();
  for (int loss = 1; loss <= kFreeLosses + 1; ++loss) {
    EXPECT_EQ(job.restarts, 0) << loss;
    job.state = JobState::kSuspending;
    job.suspend_cause = SuspendCause::kDrained;
    job = LoseNode(job).change.job;
    EXPECT_EQ(job.state, JobState::kQueued);
    EXPECT_EQ(job.suspend_cause, SuspendCause::kNone);
  }
  EXPECT_EQ(job.restarts, 1);
  EXPECT_EQ(job.reason.code, reason::kBackoff);
}

TEST(Losses, APauseHoldsWhateverIsLost) {
  JobRecord job = LossyJob(JobState::kSuspending);
  job.suspend_cause = SuspendCause::kUser;
  job.losses = 7;
  const JobRecord after = LoseNode(job).change.job;
  EXPECT_EQ(after.state, JobState::kSuspended);
  EXPECT_EQ(after.losses, 7);
  EXPECT_EQ(after.restarts, 0);
}

// Its agent heard of no server for ten minutes: that says nothing about job or node.
TEST(Losses, AWorkerThatFencedItselfIsFree) {
  JobRecord job = LossyJob();
  job.losses = 7;
  const JobRecord after = Take(job, LossyAttempt({"n"}), RankExited{.exit_code = 75}).change.job;
  EXPECT_EQ(after.state, JobState::kQueued);
  EXPECT_EQ(after.losses, 7);
  EXPECT_EQ(after.restarts, 0);
}

TEST(ChargeLoss, SpendsARestartAndTellsTheUser) {
  const JobChange change = ChargeLoss(LossyJob(), "n", "projects/p/jobs/b", kNow);
  EXPECT_TRUE(change.changed);
  EXPECT_EQ(change.job.restarts, 1);
  EXPECT_GT(change.job.version, LossyJob().version);
  EXPECT_EQ(change.job.state, JobState::kRunning);
  ASSERT_EQ(change.feed.size(), 1u);
  const std::string& told = std::get<NoticeRecord>(change.feed[0].what).message;
  EXPECT_TRUE(absl::StrContains(told, "projects/p/jobs/b has run there since")) << told;
}

TEST(ChargeLoss, EndsAJobWithoutRestartsOnceItWaits) {
  JobRecord job = LossyJob();
  job.restarts = job.max_restarts;
  EXPECT_FALSE(ChargeLoss(job, "n", "b", kNow).changed) << "what runs goes on";
  job.state = JobState::kQueued;
  const JobChange change = ChargeLoss(job, "n", "b", kNow);
  EXPECT_EQ(change.job.state, JobState::kFailed);
  EXPECT_EQ(change.job.restarts, job.max_restarts);
  EXPECT_EQ(change.job.reason.code, reason::kRestartsSpent);
}

TEST(AvoidNode, IsThatOfTheFailureUntilAFirstStepElsewhere) {
  JobRecord job = LossyJob();
  AttemptChange change =
      Take(job, LossyAttempt({"n"}), FailureRecord{.category = "DEVICE", .retryable = true});
  change = Take(change.change.job, change.attempt, RankExited{.exit_code = 71});
  EXPECT_EQ(change.change.job.state, JobState::kQueued);
  EXPECT_EQ(change.change.job.avoid_node, "n");
  EXPECT_EQ(LoseNode(job).change.job.avoid_node, "n");

  job = change.change.job;
  job.state = JobState::kStarting;
  const JobRecord running =
      Take(job, LossyAttempt({"m"}, RankState::kAssigned), RankRestored{10}).change.job;
  EXPECT_EQ(running.state, JobState::kRunning);
  EXPECT_EQ(running.avoid_node, "");
}

TEST(AvoidNode, IsNoneAfterARollback) {
  AttemptChange change =
      Take(LossyJob(), LossyAttempt({"n"}),
           FailureRecord{.category = "NUMERIC", .retryable = true, .rolled_back = true});
  change = Take(change.change.job, change.attempt, RankExited{.exit_code = 76});
  EXPECT_EQ(change.change.job.state, JobState::kQueued);
  EXPECT_EQ(change.change.job.avoid_node, "");
}

TEST(FailStart, EndsTheGangAndSpendsARestartOnceAllAreGone) {
  const FailureRecord late{
      .category = "START", .message = "late", .retryable = true, .rank = 1, .node = "m"};
  const JobRecord job = LossyJob(JobState::kStarting);
  AttemptRecord attempt = LossyAttempt({"n", "m"});
  attempt.ranks[1].state = RankState::kAssigned;
  AttemptChange change = FailStart(job, attempt, 1, late, kNow);
  ASSERT_TRUE(change.wishes_changed);
  EXPECT_GT(change.change.job.version, job.version);
  EXPECT_EQ(change.change.job.state, JobState::kStarting);
  for (const RankRecord& rank : change.attempt.ranks) {
    EXPECT_EQ(DesiredStateOf(change.change.job, change.attempt, rank, kNow),
              DesiredRankState::kStop);
  }
  change = DropRanks(change.change.job, change.attempt, {0, 1}, RankOutcome::kKilled, kNow);
  EXPECT_EQ(change.change.job.state, JobState::kQueued);
  EXPECT_EQ(change.change.job.restarts, 1);
  EXPECT_EQ(change.change.job.avoid_node, "m");
  EXPECT_EQ(change.change.job.failure->category, "START");
}

TEST(FailStart, LeavesWhatHasBegunMeanwhile) {
  const FailureRecord late{.category = "START", .retryable = true};
  const AttemptRecord begun = LossyAttempt({"n"});
  EXPECT_FALSE(FailStart(LossyJob(JobState::kStarting), begun, 0, late, kNow).wishes_changed);
  const AttemptRecord assigned = LossyAttempt({"n"}, RankState::kAssigned);
  EXPECT_FALSE(FailStart(LossyJob(JobState::kSuspending), assigned, 0, late, kNow).wishes_changed);
  EXPECT_TRUE(FailStart(LossyJob(JobState::kStarting), assigned, 0, late, kNow).wishes_changed);
}

}  // namespace
}  // namespace trainyard
