// How a job and its attempts change when it is resized, and what its user may ask for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/records/change.h"
#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Resize, IsOneLineInTheFeedAndTheJobStaysRunning) {
  JobRecord job = MakeJob({.id = "e", .slots = 1, .most_slots = 3});
  job.state = JobState::kRunning;
  job.attempt = 1;
  const Reason why{reason::kResizing, "resized 3 -> 1: job x of priority 0 waits"};
  JobChange change = ResizeJob(job, {{"n", {0}}}, true, why, absl::Minutes(1), TestNow());
  EXPECT_EQ(change.job.state, JobState::kSuspending);
  EXPECT_EQ(ShownState(change.job), JobState::kRunning);
  EXPECT_TRUE(IsResizing(change.job));
  ASSERT_EQ(change.feed.size(), 1u);
  const auto& told = std::get<StateChangeRecord>(change.feed[0].what);
  EXPECT_EQ(told.from, JobState::kRunning);
  EXPECT_EQ(told.to, JobState::kRunning);
  EXPECT_EQ(told.reason, why);
  EXPECT_THAT(change.job.resize->growths, ElementsAre(TestNow()));

  // A pause, like anything else that gives another reason, ends it.
  const auto paused =
      PauseJob(change.job, 0, {reason::kPausedByUser, "p"}, absl::Minutes(1), TestNow());
  ASSERT_TRUE(paused.ok());
  EXPECT_FALSE(IsResizing(paused->job));
  EXPECT_EQ(std::get<StateChangeRecord>(paused->feed[0].what).from, JobState::kRunning);
  EXPECT_EQ(std::get<StateChangeRecord>(paused->feed[0].what).to, JobState::kSuspending);
}

TEST(Resize, AFailedCheckpointCostsNothingAndTheJobGoesOn) {
  JobRecord job = MakeJob({.id = "e", .slots = 1, .most_slots = 3});
  job.state = JobState::kRunning;
  job.attempt = 1;
  job = ResizeJob(job, {{"n", {0}}}, false, {reason::kResizing, "r"}, absl::Minutes(1), TestNow())
            .job;
  AttemptRecord attempt{.job_uid = job.uid, .attempt = 1};
  attempt.ranks.push_back({.id = {job.uid, 1, 0}, .node = "n", .slots = {0}});
  RankRecord& rank = attempt.ranks[0];
  rank.state = RankState::kGone;
  rank.outcome = RankOutcome::kFailed;
  rank.failure = FailureRecord{.category = "STORAGE", .message = "disk full", .retryable = true};
  const AttemptVerdict verdict = EvaluateAttempt(job, attempt);
  EXPECT_EQ(verdict.trigger, JobTrigger::kPreempt);
  EXPECT_FALSE(verdict.spends_restart);
  EXPECT_EQ(verdict.reason.code, reason::kResizing);
  rank.failure->retryable = false;
  EXPECT_EQ(EvaluateAttempt(job, attempt).trigger, JobTrigger::kFail);
}

TEST(Resize, TheRangeOfAJobChangesUntilItEnds) {
  JobRecord job = MakeJob({.id = "e", .slots = 1, .most_slots = 3});
  const auto changed = SetSlotRange(job, 0, {2, 4, 100}, "ann", TestNow());
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ(changed->job.min_slots, 2);
  EXPECT_EQ(changed->job.bytes_per_slot, 100);
  EXPECT_EQ(changed->job.version, job.version + 1);
  EXPECT_EQ(std::get<NoticeRecord>(changed->feed[0].what).message,
            "takes 2 to 4 slots from now on, as ann asked; it was 1 to 3 slots");
  EXPECT_FALSE(SetSlotRange(changed->job, 0, {2, 4, 100}, "ann", TestNow())->changed);
  const SlotRange pairs{.min_slots = 2,
                        .max_slots = 4,
                        .bytes_per_slot = 60,
                        .slot_step = 2,
                        .group_ranks = 2,
                        .layout = "pairs",
                        .layout_in_words = "tensor 2"};
  const auto laid = SetSlotRange(changed->job, 0, pairs, "ann", TestNow());
  ASSERT_TRUE(laid.ok());
  EXPECT_EQ(laid->job.layout, "pairs");
  EXPECT_EQ(laid->job.slot_step, 2);
  EXPECT_EQ(laid->job.group_ranks, 2);
  EXPECT_EQ(std::get<NoticeRecord>(laid->feed[0].what).message,
            "takes 2 to 4 slots in the layout tensor 2 from now on, as ann asked; it was 2 to 4 "
            "slots in another layout");
  EXPECT_FALSE(SetSlotRange(laid->job, 0, pairs, "ann", TestNow())->changed);
  SlotRange more = pairs;
  more.max_slots = 6;
  EXPECT_EQ(std::get<NoticeRecord>(SetSlotRange(laid->job, 0, more, "a", TestNow())->feed[0].what)
                .message,
            "takes 2 to 6 slots from now on, as a asked; it was 2 to 4 slots");
  EXPECT_TRUE(absl::IsAborted(SetSlotRange(job, 7, {2, 4, 100}, "ann", TestNow()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SetSlotRange(job, 0, {0, 4, 1}, "a", TestNow()).status()));
  job.state = JobState::kFailed;  // it may be resumed
  const auto failed = SetSlotRange(job, 0, {2, 4, 1}, "a", TestNow());
  ASSERT_TRUE(failed.ok());
  EXPECT_TRUE(failed->changed);
  EXPECT_THAT(failed->feed, IsEmpty());
  job.state = JobState::kSucceeded;
  EXPECT_TRUE(absl::IsFailedPrecondition(SetSlotRange(job, 0, {2, 4, 1}, "a", TestNow()).status()));
}

}  // namespace
}  // namespace trainyard
