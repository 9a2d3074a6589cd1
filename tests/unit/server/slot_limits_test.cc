// Projects that may hold only so many slots together: who gets them, and what is said of it.

#include "server/scheduler/slot_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scheduler/explain.h"
#include "storage/records/change.h"
#include "tests/unit/server/snapshots.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `running` slots of vision are taken, of `limit` that it may have.
Snapshots Limited(int limit, int running) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 16});
  std::vector<int> slots;
  for (int i = 0; i < running; ++i) slots.push_back(i);
  if (running > 0) s.Running({.id = "r", .project = "vision"}, "n", slots);
  s.snapshot.slot_limits["vision"] = limit;
  return s;
}

TEST(Planner, AProjectGetsNoMoreSlotsThanItsLimitAndOthersPassIt) {
  Snapshots s = Limited(3, 2);
  s.Queued({.id = "first", .age_seconds = 9, .project = "vision"})
      .Queued({.id = "second", .age_seconds = 8, .project = "vision"})
      .Queued({.id = "other", .slots = 8, .age_seconds = 1});
  const Pass pass = PassOver(s);
  EXPECT_THAT(PlacedIn(pass), ElementsAre("uid-first", "uid-other"));
  EXPECT_EQ(EntryIn(pass, "uid-second").reason.code, reason::kProjectLimit);
  EXPECT_FALSE(EntryIn(pass, "uid-second").blocks);
  EXPECT_EQ(EntryIn(pass, "uid-second").reason.message,
            "needs 1 slot of 1.0 GiB; of the 3 that jobs of projects/vision may hold together too "
            "few are left, or others wait for them");
  EXPECT_EQ(Describe(s.snapshot, PlannerOptions{}, "uid-second").reason.message,
            "needs 1 slot of 1.0 GiB; jobs of projects/vision may hold 3 together, and hold 3 or "
            "wait for them ahead of it");
}

TEST(Planner, WhatIsLeftOfALimitIsKeptForWhoWaitsForIt) {
  Snapshots s = Limited(4, 2);
  s.Queued({.id = "gang", .slots = 3, .age_seconds = 9, .project = "vision"})
      .Queued({.id = "small", .age_seconds = 1, .project = "vision"});
  EXPECT_THAT(PlacedIn(PassOver(s)), IsEmpty()) << "or the gang would wait for ever";
}

// In a full yard the first of a project waits for its limit and for slots in turn.
TEST(Planner, ALongQueueBehindALimitIsNotToldAnewWheneverAJobEnds) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2}).Running({.id = "r"}, "n", {0, 1});
  s.snapshot.slot_limits["vision"] = 1;
  const Reason limited{reason::kProjectLimit,
                       "needs 1 slot of 1.0 GiB; of the 1 that jobs of projects/vision may hold "
                       "together too few are left, or others wait for them"};
  for (int i = 0; i < 5; ++i) {
    s.Queued({.id = std::to_string(i), .age_seconds = 9 - i, .project = "vision"});
    s.snapshot.jobs.back().reason = limited;
  }
  const Pass pass = PassOver(s);
  ASSERT_EQ(pass.decisions.reasons.size(), 1u);
  EXPECT_EQ(pass.decisions.reasons[0].job_uid, "uid-0");
  EXPECT_EQ(pass.decisions.reasons[0].reason.code, reason::kWaitingForSlots);
}

TEST(Planner, AJobThatItsLimitNeverAllowsKeepsNothingFromOthers) {
  Snapshots s = Limited(2, 0);
  s.Queued({.id = "gang", .slots = 3, .age_seconds = 9, .project = "vision"})
      .Queued({.id = "small", .age_seconds = 1, .project = "vision"});
  const Pass pass = PassOver(s);
  EXPECT_THAT(PlacedIn(pass), ElementsAre("uid-small"));
  EXPECT_THAT(EntryIn(pass, "uid-gang").reason.message,
              HasSubstr("jobs of projects/vision may hold 2 together"));
}

TEST(Planner, WhoWaitsForSlotsKeepsAsMuchOfTheLimit) {
  Snapshots s = Limited(2, 0);
  s.Node({.name = "g", .cuda = 1}).Running({.id = "busy"}, "g", {0});
  s.Queued({.id = "gpu", .age_seconds = 9, .device = "CUDA", .project = "vision"})
      .Queued({.id = "a", .age_seconds = 2, .device = "CPU", .project = "vision"})
      .Queued({.id = "b", .age_seconds = 1, .device = "CPU", .project = "vision"});
  EXPECT_THAT(PlacedIn(PassOver(s)), ElementsAre("uid-a"));
}

TEST(Planner, AnElasticJobGrowsUpToTheLimit) {
  Snapshots s = Limited(5, 0);
  s.Queued({.id = "e", .slots = 2, .most_slots = 12, .project = "vision"});
  const Pass pass = PassOver(s);
  ASSERT_EQ(pass.decisions.placements.size(), 1u);
  EXPECT_EQ(pass.decisions.placements[0].ranks.size(), 5u);
}

TEST(Planner, WhatAJobHasBeyondItsLeastGoesToOneOfItsProjectThatWaitsForTheLimit) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 16});
  s.Running({.id = "e", .most_slots = 8, .project = "vision"}, "n", {0, 1, 2, 3, 4, 5, 6, 7});
  s.snapshot.slot_limits["vision"] = 8;
  s.Queued({.id = "a", .slots = 3, .project = "vision"});
  Pass pass = PassOver(s);
  ASSERT_EQ(pass.decisions.resizes.size(), 1u);
  EXPECT_EQ(pass.decisions.resizes[0].ranks.size(), 5u);
  EXPECT_THAT(pass.decisions.resizes[0].reason.message, HasSubstr("job a of priority 0 waits"));
  EXPECT_TRUE(EntryIn(pass, "uid-a").awaited);
  EXPECT_THAT(Describe(s.snapshot, PlannerOptions{}, "uid-a").reason.message,
              HasSubstr("comes free as jobs of its project leave or get fewer slots"));
  // It is on its way: nothing more is asked of anybody.
  for (JobRecord& job : s.snapshot.jobs) {
    if (job.uid != "uid-e") continue;
    job = ResizeJob(job, pass.decisions.resizes[0].ranks, false, pass.decisions.resizes[0].reason,
                    absl::Minutes(1), TestNow())
              .job;
  }
  pass = PassOver(s);
  EXPECT_THAT(pass.decisions.resizes, IsEmpty());
  EXPECT_THAT(PlacedIn(pass), IsEmpty());
  EXPECT_TRUE(EntryIn(pass, "uid-a").awaited);
}

TEST(Planner, AJobOfHigherPriorityKeepsWhatItHasOfTheLimit) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 16});
  s.Running({.id = "e", .priority = 1, .most_slots = 4, .project = "vision"}, "n", {0, 1, 2, 3});
  s.snapshot.slot_limits["vision"] = 4;
  s.Queued({.id = "a", .project = "vision"});
  EXPECT_THAT(PassOver(s).decisions.resizes, IsEmpty());
}

TEST(Planner, ALimitOfZeroHoldsAProjectBackAndWhatRunsRunsOn) {
  Snapshots s = Limited(0, 2);
  s.Queued({.id = "q", .project = "vision"});
  const Pass pass = PassOver(s);
  EXPECT_THAT(PlacedIn(pass), IsEmpty());
  EXPECT_TRUE(pass.decisions.suspensions.empty());
}

TEST(Explain, SaysThatALimitKeepsAJobWaitingOrFromGrowing) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 8});
  s.Running({.id = "e", .most_slots = 4, .project = "vision"}, "n", {0, 1});
  s.Queued({.id = "gang", .slots = 3, .project = "vision"});
  s.snapshot.slot_limits["vision"] = 2;
  const Explanation grows =
      Explain(s.snapshot.jobs[0], s.snapshot.attempts, s.snapshot, PlannerOptions{});
  EXPECT_THAT(grows.details,
              ::testing::Contains("takes no more slots while jobs of projects/vision "
                                  "hold the 2 that they may together"));
  const AcceptsSpec any = [](const v1::JobSpec&) { return true; };
  const Explanation waits = Explain(s.snapshot.jobs[1], {}, s.snapshot, PlannerOptions{}, any);
  EXPECT_EQ(waits.reason.code, reason::kProjectLimit);
  EXPECT_THAT(
      waits.suggestions,
      ElementsAre("ask for at most 2 slots (resources.min_slots)",
                  "an admin may raise the limit (trainyard admin project set --max-slots)"));
}

}  // namespace
}  // namespace trainyard
