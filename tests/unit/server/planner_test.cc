#include "server/scheduler/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scheduler/explain.h"
#include "server/scheduler/slots.h"
#include "storage/base/printable.h"
#include "tests/unit/server/snapshots.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<std::string> NodesOf(const Placement& placement) {
  std::vector<std::string> nodes;
  for (const auto& rank : placement.ranks) nodes.push_back(rank.node);
  return nodes;
}

TEST(Planner, HigherPriorityGoesFirstThenAge) {
  const Pass pass = PassOver(Snapshots()
                                 .Node({.name = "n", .cpu = 2})
                                 .Queued({.id = "young", .age_seconds = 1})
                                 .Queued({.id = "old", .age_seconds = 9})
                                 .Queued({.id = "urgent", .priority = 5}));
  EXPECT_THAT(PlacedIn(pass), ElementsAre("uid-urgent", "uid-old"));
  EXPECT_EQ(pass.queue[2].reason.code, reason::kWaitingForSlots);
}

TEST(Planner, LongQueueNamesTheFirstAheadAndCountsTheRest) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1}).Running({.id = "r"}, "n", {0});
  for (int i = 0; i < 30; ++i) s.Queued({.id = "job" + std::to_string(i), .age_seconds = 30 - i});
  const Description last = Describe(s.snapshot, PlannerOptions{}, "uid-job29");
  EXPECT_EQ(last.queue_position, 30);
  EXPECT_EQ(last.ahead.size(), kMostAhead);
  EXPECT_EQ(last.ahead.front(), "projects/default/jobs/job0");
  EXPECT_THAT(last.reason.message, HasSubstr("behind projects/default/jobs/job0"));
  EXPECT_THAT(last.reason.message, HasSubstr("and 28 more"));
}

TEST(Planner, WaitingSaysWhatIsNeededAndWhoIsAhead) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4})
      .Running({.id = "r"}, "n", {0, 1, 2})
      .Queued({.id = "a", .slots = 2, .priority = 10, .bytes = 8 * kGiB})
      .Queued({.id = "b", .slots = 1, .bytes = 8 * kGiB});
  EXPECT_THAT(PlacedIn(PassOver(s)), ElementsAre());
  const Description a = Describe(s.snapshot, PlannerOptions{}, "uid-a");
  EXPECT_EQ(a.reason.code, reason::kWaitingForSlots);
  EXPECT_EQ(a.reason.message, "needs 2 slots of 8.0 GiB; 1 of 4 is free");
  const Description b = Describe(s.snapshot, PlannerOptions{}, "uid-b");
  EXPECT_EQ(b.reason.code, reason::kBehindOthers);
  EXPECT_EQ(b.reason.message,
            "needs 1 slot of 8.0 GiB; 1 of 4 is free, 1 kept for jobs ahead; behind "
            "projects/default/jobs/a (priority 10)");
  EXPECT_THAT(b.ahead, ElementsAre("projects/default/jobs/a"));
}

// What is stored of a job that waits is written once, however many others start and end.
TEST(Planner, AStoredReasonDoesNotChangeWithTheQueue) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4}).Running({.id = "r"}, "n", {0, 1, 2, 3});
  for (int i = 0; i < 50; ++i) s.Queued({.id = "job" + std::to_string(i), .age_seconds = 90 - i});
  const Pass first = PassOver(s);
  ASSERT_EQ(first.decisions.reasons.size(), 50u);
  for (size_t i = 0; i < 50; ++i) s.snapshot.jobs[i + 1].reason = first.queue[i].reason;
  EXPECT_TRUE(PassOver(s).decisions.reasons.empty());
  // Ten of them are gone, others came ahead, and two slots are free: two start.
  s.snapshot.jobs.erase(s.snapshot.jobs.begin() + 1, s.snapshot.jobs.begin() + 11);
  s.snapshot.attempts[0].ranks.resize(2);
  s.Queued({.id = "urgent", .priority = 9});
  const Pass second = PassOver(s);
  EXPECT_EQ(PlacedIn(second).size(), 2u);
  EXPECT_TRUE(second.decisions.reasons.empty());
}

// What a pass decides is applied in one transaction, which must end soon.
TEST(Planner, APassDecidesSoMuchAndTheNextOneFollowsAtOnce) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 300});
  for (int i = 0; i < 1000; ++i) {
    s.Queued({.id = "job" + std::to_string(i), .age_seconds = 2000 - i});
  }
  const PlannerOptions options;
  const Pass pass = PassOver(s);
  EXPECT_EQ(pass.decisions.placements.size(), options.most_placements);
  EXPECT_EQ(PlacedIn(pass).front(), "uid-job0");
  EXPECT_EQ(pass.next, s.snapshot.now);

  s.snapshot.nodes.clear();
  const Pass waiting = PassOver(s);
  EXPECT_EQ(waiting.decisions.reasons.size(), options.most_reasons);
  EXPECT_EQ(waiting.queue.size(), 1000u);
  EXPECT_EQ(waiting.next, s.snapshot.now);
}

TEST(Planner, GangGetsAllItsSlotsOrNone) {
  Snapshots s;
  s.Node({.name = "n1", .cpu = 2}).Node({.name = "n2", .cpu = 2}).Queued({.id = "g", .slots = 4});
  EXPECT_EQ(PassOver(s).decisions.placements.at(0).ranks.size(), 4u);
  s.Running({.id = "r"}, "n1", {0});
  EXPECT_TRUE(PassOver(s).decisions.placements.empty());
}

TEST(Planner, GangUsesTheFewestNodesAndLeavesLeastOver) {
  const Pass pass = PassOver(Snapshots()
                                 .Node({.name = "a", .cpu = 1})
                                 .Node({.name = "b", .cpu = 4})
                                 .Node({.name = "c", .cpu = 3})
                                 .Node({.name = "d", .cpu = 2})
                                 .Queued({.id = "g", .slots = 2}));
  EXPECT_THAT(NodesOf(pass.decisions.placements.at(0)), ElementsAre("d", "d"));
  const Pass wide = PassOver(Snapshots()
                                 .Node({.name = "a", .cpu = 1})
                                 .Node({.name = "b", .cpu = 4})
                                 .Node({.name = "c", .cpu = 3})
                                 .Queued({.id = "g", .slots = 5}));
  EXPECT_THAT(NodesOf(wide.decisions.placements.at(0)), ElementsAre("b", "b", "b", "b", "a"));
}

TEST(Planner, SmallJobDoesNotOvertakeAGangThatWaits) {
  const Pass pass = PassOver(Snapshots()
                                 .Node({.name = "n", .cpu = 4})
                                 .Running({.id = "r"}, "n", {0})
                                 .Queued({.id = "gang", .slots = 4, .age_seconds = 9})
                                 .Queued({.id = "small", .slots = 1, .age_seconds = 1}));
  EXPECT_THAT(PlacedIn(pass), ElementsAre());
  EXPECT_EQ(EntryIn(pass, "uid-small").reason.code, reason::kBehindOthers);
}

TEST(Planner, JobBehindMayTakeWhatTheOneAheadCannotUse) {
  const Pass pass =
      PassOver(Snapshots()
                   .Node({.name = "n", .cpu = 2, .cuda = 2})
                   .Running({.id = "r"}, "n", {2})
                   .Queued({.id = "gpu", .slots = 2, .age_seconds = 9, .device = "CUDA"})
                   .Queued({.id = "cpu", .slots = 1, .device = "CPU"}));
  EXPECT_THAT(PlacedIn(pass), ElementsAre("uid-cpu"));
}

TEST(Planner, SlotsTooSmallForTheJobAheadAreOpen) {
  const Pass pass = PassOver(Snapshots()
                                 .Node({.name = "large", .cpu = 1, .bytes = 16 * kGiB})
                                 .Node({.name = "small", .cpu = 1, .bytes = 4 * kGiB})
                                 .Running({.id = "r"}, "large", {0})
                                 .Queued({.id = "big", .age_seconds = 9, .bytes = 10 * kGiB})
                                 .Queued({.id = "little", .bytes = kGiB}));
  EXPECT_THAT(PlacedIn(pass), ElementsAre("uid-little"));
}

TEST(Planner, JobThatFitsNowhereBlocksNobody) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2})
      .Queued({.id = "huge", .slots = 3, .priority = 9})
      .Queued({.id = "small"});
  EXPECT_THAT(PlacedIn(PassOver(s)), ElementsAre("uid-small"));
  const Description huge = Describe(s.snapshot, PlannerOptions{}, "uid-huge");
  EXPECT_EQ(huge.reason.code, reason::kFitsNoNode);
  EXPECT_EQ(huge.reason.message,
            "needs 3 slots of 1.0 GiB; present are 2 CPU slots of up to 8.0 GiB on 1 node");
}

TEST(Planner, WithoutNodesJobsWaitForOne) {
  const Description a =
      Describe(Snapshots().Queued({.id = "a"}).snapshot, PlannerOptions{}, "uid-a");
  EXPECT_EQ(a.reason.code, reason::kNoNodes);
  EXPECT_THAT(a.reason.message, HasSubstr("of 0 nodes none takes work"));
}

TEST(Planner, GangNeverMixesDevices) {
  const Pass pass = PassOver(
      Snapshots().Node({.name = "n", .cpu = 1, .cuda = 1}).Queued({.id = "g", .slots = 2}));
  EXPECT_TRUE(pass.decisions.placements.empty());
  EXPECT_EQ(pass.queue[0].reason.code, reason::kFitsNoNode);
}

TEST(Planner, BackoffIsRespectedAndWakesAtItsEnd) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1, .lease_left = absl::Hours(1)}).Queued({.id = "a"});
  s.snapshot.jobs[0].not_before = TestNow() + absl::Seconds(7);
  s.snapshot.jobs[0].restarts = 2;
  const Pass pass = PassOver(s);
  EXPECT_TRUE(pass.decisions.placements.empty());
  EXPECT_EQ(pass.queue[0].reason.code, reason::kBackoff);
  EXPECT_THAT(pass.queue[0].reason.message, HasSubstr("restart 2 of at most 5"));
  EXPECT_EQ(pass.next, TestNow() + absl::Seconds(7));
  EXPECT_EQ(pass.queue[0].earliest_start, TestNow() + absl::Seconds(7));
}

TEST(Planner, JobInBackoffLetsOthersPass) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1}).Queued({.id = "a", .age_seconds = 9}).Queued({.id = "b"});
  s.snapshot.jobs[0].not_before = TestNow() + absl::Seconds(1);
  EXPECT_THAT(PlacedIn(PassOver(s)), ElementsAre("uid-b"));
}

TEST(Planner, NodeIsLostOnlyAfterLeaseAndMargin) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1, .lease_left = absl::Seconds(-1)});
  EXPECT_TRUE(PassOver(s).decisions.lost_nodes.empty());
  EXPECT_EQ(PassOver(s).next, TestNow() + absl::Seconds(1));
  s.snapshot.nodes[0].lease_end = TestNow() - absl::Seconds(2);
  s.snapshot.nodes[0].beat = 7;
  ASSERT_EQ(PassOver(s).decisions.lost_nodes.size(), 1u);
  EXPECT_EQ(PassOver(s).decisions.lost_nodes[0].name, "n");
  EXPECT_EQ(PassOver(s).decisions.lost_nodes[0].beat, 7);
  s.snapshot.nodes[0].reachable = false;
  EXPECT_TRUE(PassOver(s).decisions.lost_nodes.empty()) << "a node is lost once";
}

TEST(Planner, NodeWithAFullDiskTakesNothingAndSaysWhatToFree) {
  Snapshots s;
  s.Node({.name = "full", .cpu = 1});
  s.Node({.name = "other", .cpu = 1});
  s.snapshot.nodes[0].report.disk_free_bytes = int64_t{3} << 20;
  s.snapshot.nodes[1].report.disk_free_bytes = int64_t{1} << 40;
  s.Queued({.id = "a"});
  ASSERT_EQ(PassOver(s).decisions.placements.size(), 1u);
  EXPECT_EQ(PassOver(s).decisions.placements[0].ranks[0].node, "other");
  s.snapshot.nodes.pop_back();
  EXPECT_TRUE(PassOver(s).decisions.placements.empty());
  const Description description = Describe(s.snapshot, {}, "uid-a");
  EXPECT_THAT(description.reason.message,
              AllOf(HasSubstr("1 cordoned: nodes/full, its disk is full: 3.0 MiB are free"),
                    HasSubstr("free some")));
}

TEST(Planner, JobThatHasNotBegunLeavesANodeWhoseDiskIsFull) {
  Snapshots s;
  s.Node({.name = "full", .cpu = 2});
  s.snapshot.nodes[0].report.disk_free_bytes = 0;
  s.Running({.id = "a"}, "full", {0});
  EXPECT_TRUE(PassOver(s).decisions.suspensions.empty()) << "what runs goes on";
  s.snapshot.jobs[0].state = JobState::kStarting;
  s.snapshot.attempts[0].ranks[0].state = RankState::kAssigned;
  ASSERT_EQ(PassOver(s).decisions.suspensions.size(), 1u);
  EXPECT_EQ(PassOver(s).decisions.suspensions[0].reason.code, reason::kNodeCordoned);
}

TEST(Planner, NodeWithoutLeaseTakesNothingEvenBeforeItIsLost) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1, .lease_left = absl::Seconds(-1)}).Queued({.id = "a"});
  EXPECT_TRUE(PassOver(s).decisions.placements.empty());
  EXPECT_THAT(Describe(s.snapshot, PlannerOptions{}, "uid-a").reason.message, HasSubstr("1 away"));
}

TEST(Planner, DrainingNodeTakesNothingAndItsJobsAreSuspended) {
  const Pass pass = PassOver(Snapshots()
                                 .Node({.name = "n", .cpu = 2, .draining = true})
                                 .Running({.id = "r"}, "n", {0})
                                 .Queued({.id = "a"}));
  EXPECT_TRUE(pass.decisions.placements.empty());
  ASSERT_EQ(pass.decisions.suspensions.size(), 1u);
  EXPECT_EQ(pass.decisions.suspensions[0].job_uid, "uid-r");
  EXPECT_EQ(pass.decisions.suspensions[0].cause, SuspendCause::kDrained);
  EXPECT_THAT(pass.decisions.suspensions[0].reason.message, HasSubstr("nodes/n is drained"));
}

TEST(Planner, LeavingNodeTakesNothingAndItsJobsGetTheTimeThatItHas) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2, .leaves_in = absl::Seconds(20)})
      .Running({.id = "r"}, "n", {0})
      .Queued({.id = "a"});
  const Pass pass = PassOver(s);
  EXPECT_TRUE(pass.decisions.placements.empty());
  ASSERT_EQ(pass.decisions.suspensions.size(), 1u);
  EXPECT_EQ(pass.decisions.suspensions[0].grace, absl::Seconds(20));
  EXPECT_THAT(pass.decisions.suspensions[0].reason.message, HasSubstr("nodes/n leaves"));
  EXPECT_THAT(Describe(s.snapshot, PlannerOptions{}, "uid-a").reason.message,
              HasSubstr("1 draining or leaving"));
  s.snapshot.nodes[0].leave_time = TestNow() + absl::Hours(5);
  EXPECT_EQ(PassOver(s).decisions.suspensions[0].grace, PlannerOptions().drain_grace);
  s.snapshot.nodes[0].leave_time = TestNow() - absl::Seconds(5);
  EXPECT_EQ(PassOver(s).decisions.suspensions[0].grace, absl::ZeroDuration());
}

TEST(Planner, SuspendingJobIsNotSuspendedAgain) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2, .draining = true})
      .Running({.id = "r"}, "n", {0}, JobState::kSuspending);
  s.snapshot.jobs[0].suspend_deadline = TestNow() + absl::Seconds(3);
  EXPECT_TRUE(PassOver(s).decisions.suspensions.empty());
  EXPECT_EQ(PassOver(s).next, TestNow() + absl::Seconds(3));
  EXPECT_FALSE(PassOver(s).suspension_overdue);
  s.snapshot.jobs[0].suspend_deadline = TestNow();
  EXPECT_TRUE(PassOver(s).suspension_overdue);
}

TEST(Planner, SlotOfARankThatIsNotGoneIsNotFree) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1})
      .Running({.id = "r"}, "n", {0}, JobState::kCancelling)
      .Queued({.id = "a"});
  EXPECT_TRUE(PassOver(s).decisions.placements.empty());
  s.snapshot.attempts[0].ranks[0].state = RankState::kGone;
  EXPECT_THAT(PlacedIn(PassOver(s)), ElementsAre("uid-a"));
}

TEST(Planner, SlotOfALostRankIsTakenWhileItsMachineIsInTheSameBoot) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1}).Queued({.id = "a"});
  NodeRecord& node = s.snapshot.nodes[0];
  node.instance = "boot-1:0:1:";
  node.lost_ranks = {
      {.id = {"uid-ended", 3, 0}, .claim = {"other", "boot-1:0:2:", "x"}, .slots = {0}}};
  EXPECT_THAT(PlacedIn(PassOver(s)), IsEmpty());
  node.instance = "boot-2:0:1:";
  EXPECT_THAT(PlacedIn(PassOver(s)), ElementsAre("uid-a"));
}

TEST(Planner, CancelledJobWaitsForItsLostRanksUntilTheyCannotLive) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2}).Running({.id = "r"}, "n", {0}, JobState::kCancelling);
  RankRecord& rank = s.snapshot.attempts[0].ranks[0];
  const PlannerOptions options;
  EXPECT_THAT(PassOver(s).decisions.overdue_cancels, IsEmpty()) << "it is told to stop";
  rank.state = RankState::kLost;
  rank.gone_time = TestNow() - options.orphan_limit;
  EXPECT_THAT(PassOver(s).decisions.overdue_cancels, IsEmpty());
  rank.gone_time = TestNow() - options.orphan_limit - kOrphanMargin;
  ASSERT_EQ(PassOver(s).decisions.overdue_cancels.size(), 1u);
  EXPECT_EQ(PassOver(s).decisions.overdue_cancels[0].job_uid, "uid-r");
  // A lost rank of an earlier attempt counts as well.
  s.snapshot.nodes[0].lost_ranks = {{.id = {"uid-r", 1, 0}, .slots = {1}, .time = TestNow()}};
  EXPECT_THAT(PassOver(s).decisions.overdue_cancels, IsEmpty());
}

TEST(Planner, UnchangedReasonIsNotWrittenAgain) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1}).Running({.id = "r"}, "n", {0}).Queued({.id = "a"});
  const Pass first = PassOver(s);
  ASSERT_EQ(first.decisions.reasons.size(), 1u);
  s.snapshot.jobs[1].reason = first.decisions.reasons[0].reason;
  EXPECT_TRUE(PassOver(s).decisions.reasons.empty());
}

TEST(Planner, AnyDevicePrefersCudaAndTakesCpuWhenThatIsFree) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1, .cuda = 1})
      .Queued({.id = "a", .age_seconds = 9})
      .Queued({.id = "b"});
  const Pass pass = PassOver(s);
  ASSERT_EQ(pass.decisions.placements.size(), 2u);
  EXPECT_THAT(pass.decisions.placements[0].ranks[0].slots, ElementsAre(1));
  EXPECT_THAT(pass.decisions.placements[1].ranks[0].slots, ElementsAre(0));
}

TEST(Explain, SaysPositionWhoIsAheadAndWhyPerNode) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2})
      .Node({.name = "m", .cpu = 2, .reachable = false})
      .Running({.id = "r"}, "n", {0})
      .Queued({.id = "gang", .slots = 2, .priority = 3})
      .Queued({.id = "me"});
  const Explanation why = Explain(s.snapshot.jobs[2], {}, s.snapshot, PlannerOptions{});
  EXPECT_EQ(why.queue_position, 2);
  EXPECT_THAT(why.ahead, ElementsAre("projects/default/jobs/gang"));
  EXPECT_EQ(why.reason.code, reason::kBehindOthers);
  EXPECT_EQ(why.earliest_start, absl::InfiniteFuture());
  ASSERT_EQ(why.details.size(), 2u);
  EXPECT_EQ(why.details[0], "nodes/n: 1 of 2 fitting slots free");
  EXPECT_THAT(why.details[1], HasSubstr("nodes/m: away"));
  EXPECT_FALSE(why.suggestions.empty());
}

TEST(Explain, TellsOnHowManySlotsAGangWouldStartNow) {
  Snapshots s;
  s.Node({.name = "a", .cuda = 4})
      .Node({.name = "b", .cuda = 4})
      .Node({.name = "c", .cuda = 4, .bytes = kGiB / 2})
      .Running({.id = "r"}, "a", {0})
      .Running({.id = "q"}, "b", {0, 1})
      .Queued({.id = "gang", .slots = 8, .device = "CUDA"});
  const auto reason = [&] {
    return Explain(s.snapshot.jobs[2], {}, s.snapshot, PlannerOptions{}).reason.message;
  };
  EXPECT_EQ(reason(),
            "needs 8 CUDA slots of 1.0 GiB; 5 of 8 are free; 5 such slots are free for it, 3 on "
            "nodes/a, 2 on nodes/b: with resources.min_slots 5 it would start now "
            "(parallel.logical_ranks 8 keeps its bits; a rank then hosts more logical ranks: "
            "'trainyard plan' tells its memory)");
  v1::JobSpec spec;
  spec.mutable_parallel()->set_logical_ranks(16);
  s.snapshot.jobs[2].spec = spec.SerializeAsString();
  EXPECT_THAT(reason(), HasSubstr("(parallel.logical_ranks 16 keeps"));
  // What it says is true: the planner places it.
  s.snapshot.jobs[2].min_slots = s.snapshot.jobs[2].max_slots = 5;
  EXPECT_THAT(PlacedIn(PassOver(s)), ElementsAre("uid-gang"));
  s.snapshot.jobs[2].min_slots = s.snapshot.jobs[2].max_slots = 6;
  EXPECT_THAT(PlacedIn(PassOver(s)), IsEmpty());
}

TEST(Explain, AGangOfMoreSlotsThanThereAreIsToldHowManyThereAre) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 2})
      .Node({.name = "b", .cpu = 8, .draining = true})
      .Queued({.id = "gang", .slots = 4});
  const auto explain = [&] {
    return Explain(s.snapshot.jobs[0], {}, s.snapshot, PlannerOptions{});
  };
  EXPECT_EQ(explain().reason.code, reason::kFitsNoNode);
  EXPECT_THAT(explain().reason.message,
              HasSubstr("; 2 such slots are free for it, 2 on nodes/a: with resources.min_slots 2 "
                        "it would start now"));
  s.Running({.id = "r"}, "a", {0, 1});
  EXPECT_THAT(explain().reason.message,
              HasSubstr("; with resources.min_slots 2 it would start once these slots are free"));
}

TEST(Explain, WhatIsKeptForJobsAheadStartsNothing) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4})
      .Running({.id = "r"}, "n", {0})
      .Queued({.id = "ahead", .slots = 4, .priority = 3})
      .Queued({.id = "gang", .slots = 4})
      .Queued({.id = "one"});
  EXPECT_THAT(Explain(s.snapshot.jobs[2], {}, s.snapshot, PlannerOptions{}).reason.message,
              HasSubstr("no such slot is free for it: on fewer it would not start either"));
  EXPECT_THAT(Explain(s.snapshot.jobs[3], {}, s.snapshot, PlannerOptions{}).reason.message,
              ::testing::Not(HasSubstr("min_slots")));
}

TEST(Planner, StoredReasonsSayNothingThatChangesWithPlacements) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4}).Running({.id = "r"}, "n", {0}).Queued({.id = "gang", .slots = 4});
  const Pass pass = PassOver(s);
  ASSERT_EQ(pass.decisions.reasons.size(), 1u);
  EXPECT_EQ(pass.decisions.reasons[0].reason.message.find("would start"), std::string::npos);
}

TEST(SmallerGang, NamesAFewNodesAndCountsTheOthers) {
  Snapshots s;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) s.Node({.name = name, .cpu = 1});
  const SlotDemand demand{.count = 8};
  const SmallerGang gang = FindSmallerGang(SlotTable(s.snapshot), demand, SpecChanges({}, {}));
  EXPECT_EQ(gang.slots, 6);
  EXPECT_EQ(gang.free, 6);
  EXPECT_EQ(gang.later, 6);
  EXPECT_THAT(DescribeSmallerGang(gang, demand, 8),
              HasSubstr("1 on nodes/a, 1 on nodes/b, 1 on nodes/c, 1 on nodes/d and more on 2 "
                        "others: with resources.min_slots 6"));
  EXPECT_EQ(DescribeSmallerGang(gang, {.count = 1}, 1), "");
}

TEST(Explain, FailedJobTellsEveryAttemptAndWhatToTry) {
  Snapshots s;
  JobRecord job = MakeJob({.id = "a"});
  job.state = JobState::kFailed;
  job.failure =
      FailureRecord{.category = "NUMERIC", .message = "loss is NaN at step 7", .node = "n"};
  AttemptRecord attempt{.job_uid = job.uid, .attempt = 1, .create_time = TestNow()};
  attempt.ranks.push_back({.id = {job.uid, 1, 0}, .node = "n", .slots = {0}});
  attempt.ranks[0].failure = job.failure;
  const Explanation why = Explain(job, {attempt}, s.snapshot, PlannerOptions{});
  EXPECT_EQ(why.queue_position, 0);
  ASSERT_EQ(why.details.size(), 2u);
  EXPECT_THAT(why.details[0], HasSubstr("rank 0 on n failed: loss is NaN at step 7"));
  EXPECT_THAT(why.details[1], HasSubstr("NUMERIC"));
  ASSERT_EQ(why.suggestions.size(), 1u);
  EXPECT_THAT(why.suggestions[0], HasSubstr("learning_rate"));
}

TEST(Slots, BytesReadWell) {
  EXPECT_EQ(DescribeBytes(12), "12 B");
  EXPECT_EQ(DescribeBytes(1536), "1.5 KiB");
  EXPECT_EQ(DescribeBytes(8 * kGiB), "8.0 GiB");
}

}  // namespace
}  // namespace trainyard
