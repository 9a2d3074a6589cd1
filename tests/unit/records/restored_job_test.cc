// What becomes of a job whose yard's database was restored from a backup.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/records/reason_codes.h"
#include "storage/records/restored_job.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

const absl::Time kAtRestore = absl::FromUnixSeconds(1'000'000);

CheckpointRecord At(int64_t step, const std::string& manifest = "m") {
  return {.step = step, .uri = "file:///c/" + std::to_string(step), .manifest_sha256 = manifest};
}

std::vector<int64_t> Steps(const std::vector<CheckpointRecord>& checkpoints) {
  std::vector<int64_t> steps;
  for (const CheckpointRecord& one : checkpoints) steps.push_back(one.step);
  return steps;
}

using StepList = std::vector<int64_t>;

TEST(CompareCheckpoints, TellsWhatIsMissingAndWhatWasMadeSince) {
  const JobRecord job{.uid = "u", .total_steps = 100, .attempt = 3};
  const CheckpointsOfRestored both =
      CompareCheckpoints(job, {At(10), At(20), At(30)}, {At(20), At(30, "anew"), At(40), At(100)});
  EXPECT_EQ(Steps(both.missing), StepList({10}));
  EXPECT_EQ(Steps(both.found), StepList({30, 40, 100}));
  EXPECT_EQ(Steps(both.now), StepList({20, 30, 40, 100}));
  EXPECT_EQ(both.found[0].manifest_sha256, "anew");
  EXPECT_EQ(both.found[0].attempt, 3);
  EXPECT_FALSE(both.found[1].final);
  EXPECT_TRUE(both.found[2].final);
}

TEST(CompareCheckpoints, WhatLiesPastTheLastStepIsNoneOfTheJobs) {
  const JobRecord job{.uid = "u", .total_steps = 50};
  EXPECT_TRUE(CompareCheckpoints(job, {}, {At(51)}).now.empty());
  // One of a run that went back to its beginning.
  EXPECT_EQ(Steps(CompareCheckpoints(job, {At(0)}, {At(0)}).now), StepList({0}));
}

TEST(CompareCheckpoints, OneThatWasMovedIsTheSame) {
  const JobRecord job{.uid = "u", .total_steps = 50};
  CheckpointRecord known = At(10);
  known.final = true;
  CheckpointRecord there = At(10);
  there.uri = "file:///elsewhere/10";
  const CheckpointsOfRestored both = CompareCheckpoints(job, {known}, {there});
  EXPECT_TRUE(both.found.empty());
  ASSERT_EQ(both.moved.size(), 1);
  EXPECT_EQ(both.moved[0].uri, there.uri);
  EXPECT_TRUE(both.now[0].final);
}

JobRecord RestoredJob(JobState state, SuspendCause cause = SuspendCause::kNone) {
  JobRecord job{.uid = "u", .job_id = "job", .total_steps = 100, .max_restarts = 1};
  job.state = state;
  job.suspend_cause = cause;
  job.attempt = 1;
  job.restarts = 1;
  job.losses = 5;  // one more would cost its last restart
  return job;
}

AttemptRecord RestoredAttempt() {
  AttemptRecord attempt{.job_uid = "u", .attempt = 1, .world_size = 2};
  for (int rank = 0; rank < 2; ++rank) {
    attempt.ranks.push_back({.id = {"u", 1, rank},
                             .node = "n",
                             .claim = {"uid", "boot:1:2", "token"},
                             .slots = {rank},
                             .state = RankState::kRunning});
  }
  return attempt;
}

TEST(FenceRanks, AJobThatRanGoesOnAndPaysNothing) {
  const JobRecord job = RestoredJob(JobState::kRunning);
  const AttemptChange fenced = FenceRanks(job, RestoredAttempt(), RestoredAs::kTheYard, kAtRestore);
  EXPECT_EQ(fenced.change.job.state, JobState::kQueued);
  EXPECT_EQ(fenced.change.job.reason.code, reason::kRestored);
  EXPECT_EQ(fenced.change.job.losses, job.losses);
  EXPECT_EQ(fenced.change.job.restarts, job.restarts);
  EXPECT_EQ(fenced.change.job.not_before, absl::InfinitePast());
  EXPECT_EQ(fenced.change.job.avoid_node, "");
  ASSERT_EQ(fenced.change.feed.size(), 1);
  EXPECT_EQ(std::get<StateChangeRecord>(fenced.change.feed[0].what).reason.code, reason::kRestored);
  for (const RankRecord& rank : fenced.attempt.ranks) EXPECT_EQ(rank.state, RankState::kLost);
  const AgentIdentity agent("n", "uid", "boot:1:2");
  EXPECT_FALSE(MayRejoin(fenced.change.job, fenced.attempt, agent,
                         {{{"u", 1, 0}, "token"}, {{"u", 1, 1}, "token"}}));
}

TEST(FenceRanks, AResizeEndsAndItsUsersSeeTheJobWait) {
  JobRecord job = RestoredJob(JobState::kSuspending, SuspendCause::kPreempted);
  job.reason = {reason::kResizing, "resized 2 -> 3"};
  job.resize = ResizeRecord{.attempt = 1, .kept_step = 7};
  const AttemptChange fenced = FenceRanks(job, RestoredAttempt(), RestoredAs::kTheYard, kAtRestore);
  EXPECT_EQ(fenced.change.job.state, JobState::kQueued);
  EXPECT_FALSE(IsResizing(fenced.change.job));
  EXPECT_EQ(fenced.change.job.resize->kept_step, 0);
  ASSERT_EQ(fenced.change.feed.size(), 1);
  EXPECT_EQ(std::get<StateChangeRecord>(fenced.change.feed[0].what).to, JobState::kQueued);
}

TEST(FenceRanks, AFailureForGoodIsKept) {
  AttemptRecord attempt = RestoredAttempt();
  attempt.ranks[0].outcome = RankOutcome::kFailed;
  attempt.ranks[0].failure = FailureRecord{.category = "USER", .message = "no such file"};
  const AttemptChange fenced =
      FenceRanks(RestoredJob(JobState::kRunning), attempt, RestoredAs::kTheYard, kAtRestore);
  EXPECT_EQ(fenced.change.job.state, JobState::kFailed);
  ASSERT_TRUE(fenced.change.job.failure.has_value());
  EXPECT_EQ(fenced.change.job.failure->category, "USER");
}

TEST(FenceRanks, APauseHoldsAndACancelWaitsForTheRanks) {
  EXPECT_EQ(FenceRanks(RestoredJob(JobState::kSuspending, SuspendCause::kUser), RestoredAttempt(),
                       RestoredAs::kTheYard, kAtRestore)
                .change.job.state,
            JobState::kSuspended);
  EXPECT_EQ(FenceRanks(RestoredJob(JobState::kCancelling), RestoredAttempt(), RestoredAs::kTheYard,
                       kAtRestore)
                .change.job.state,
            JobState::kCancelling);
  EXPECT_EQ(FenceRanks(RestoredJob(JobState::kCancelling), RestoredAttempt(), RestoredAs::kCopy,
                       kAtRestore)
                .change.job.state,
            JobState::kCancelled);
}

TEST(FenceRanks, OfACopyNothingRuns) {
  const AttemptChange fenced = FenceRanks(RestoredJob(JobState::kStarting), RestoredAttempt(),
                                          RestoredAs::kCopy, kAtRestore);
  EXPECT_EQ(fenced.change.job.state, JobState::kQueued);
  EXPECT_EQ(fenced.change.job.restarts, 1);
  for (const RankRecord& rank : fenced.attempt.ranks) EXPECT_EQ(rank.state, RankState::kGone);
}

TEST(FenceRanks, WhatIsOverIsLeftAlone) {
  AttemptRecord attempt = RestoredAttempt();
  for (RankRecord& rank : attempt.ranks) {
    rank.state = RankState::kGone;
    rank.outcome = RankOutcome::kSuspended;
  }
  const AttemptChange fenced =
      FenceRanks(RestoredJob(JobState::kSuspended), attempt, RestoredAs::kTheYard, kAtRestore);
  EXPECT_FALSE(fenced.wishes_changed);
  EXPECT_EQ(fenced.change.job.state, JobState::kSuspended);
}

TEST(TakeRestoredCheckpoints, TellsItsUsersOfThem) {
  JobChange change{.job = RestoredJob(JobState::kQueued)};
  change.job.resize = ResizeRecord{.attempt = 1, .kept_step = 30};
  const CheckpointsOfRestored both = CompareCheckpoints(change.job, {At(10)}, {At(20), At(30)});
  TakeRestoredCheckpoints(both, kAtRestore, change);
  EXPECT_EQ(change.job.newest_checkpoint_uri, "file:///c/30");
  EXPECT_EQ(change.job.resize->kept_step, 0);
  ASSERT_EQ(change.feed.size(), 4);
  EXPECT_THAT(std::get<NoticeRecord>(change.feed[0].what).message,
              HasSubstr("of step 10 that it knew are not there any more"));
  EXPECT_THAT(std::get<NoticeRecord>(change.feed[1].what).message,
              HasSubstr("of steps 20, 30 were made after it, and are kept"));
  EXPECT_EQ(std::get<CheckpointRecord>(change.feed[3].what).step, 30);
}

}  // namespace
}  // namespace trainyard
