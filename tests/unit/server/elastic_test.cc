#include "server/scheduler/elastic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/explain.h"
#include "storage/records/change.h"
#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "n/0 n/1 m/2"
std::string Slots(const std::vector<Placement::Rank>& ranks) {
  return absl::StrJoin(ranks, " ", [](std::string* out, const auto& rank) {
    absl::StrAppend(out, rank.node, "/", absl::StrJoin(rank.slots, "+"));
  });
}

// "uid-a: resized 2 -> 1: …" of each resize of a pass.
std::vector<std::string> Resizes(const Pass& pass) {
  std::vector<std::string> texts;
  for (const Resize& resize : pass.decisions.resizes) {
    texts.push_back(absl::StrCat(resize.job_uid, ": ", resize.reason.message));
  }
  return texts;
}

std::vector<std::string> PlacedSlots(const Pass& pass) {
  std::vector<std::string> texts;
  for (const Placement& placement : pass.decisions.placements) {
    texts.push_back(absl::StrCat(placement.job_uid, " ", Slots(placement.ranks)));
  }
  return texts;
}

Pass Decide(const Snapshots& s) { return PlanPass(s.snapshot, PlannerOptions{}); }

// A running job for which slots have been spare for so long.
Snapshots& SpareFor(Snapshots& s, absl::Duration spare) {
  s.snapshot.attempts.back().spare_since = TestNow() - spare;
  s.snapshot.attempts.back().create_time = TestNow() - absl::Hours(1);
  s.snapshot.jobs.back().update_time = TestNow() - absl::Hours(1);
  return s;
}

JobRecord& LastJob(Snapshots& s) { return s.snapshot.jobs.back(); }

TEST(Elastic, AJobStartsOnAsManySlotsAsNobodyElseWaitsFor) {
  EXPECT_THAT(PlacedSlots(Decide(Snapshots()
                                     .Node({.name = "n", .cpu = 3})
                                     .Node({.name = "o", .cpu = 2})
                                     .Queued({.id = "e", .slots = 1, .most_slots = 4}))),
              ElementsAre("uid-e o/0 o/1 n/0 n/1"));
  EXPECT_THAT(
      PlacedSlots(Decide(Snapshots()
                             .Node({.name = "n", .cpu = 4})
                             .Queued({.id = "e", .slots = 1, .age_seconds = 9, .most_slots = 4})
                             .Queued({.id = "x", .slots = 2}))),
      ElementsAre("uid-e n/0 n/3", "uid-x n/1 n/2"));
}

TEST(Elastic, AJobWaitsForItsLeastNumberOfSlots) {
  const Pass pass = Decide(
      Snapshots().Node({.name = "n", .cpu = 2}).Queued({.id = "e", .slots = 3, .most_slots = 4}));
  EXPECT_THAT(pass.decisions.placements, IsEmpty());
  EXPECT_EQ(pass.queue[0].reason.code, reason::kFitsNoNode);
}

TEST(Elastic, AWaitingJobOfAtLeastItsPriorityTakesItsSurplus) {
  const auto with = [](int priority, int slots) {
    Snapshots s;
    s.Node({.name = "n", .cpu = 4})
        .Running({.id = "e", .slots = 2, .priority = 1, .most_slots = 4}, "n", {0, 1, 2, 3})
        .Queued({.id = "x", .slots = slots, .priority = priority});
    return Decide(s);
  };
  EXPECT_THAT(Resizes(with(1, 1)), ElementsAre("uid-e: resized 4 -> 3: job x of priority 1 waits"));
  EXPECT_THAT(Resizes(with(5, 2)), ElementsAre("uid-e: resized 4 -> 2: job x of priority 5 waits"));
  EXPECT_THAT(Resizes(with(0, 1)), IsEmpty());  // of less priority
  EXPECT_THAT(Resizes(with(1, 3)), IsEmpty());  // it would have less than its least
}

TEST(Elastic, OneResizeServesAllWhoWait) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 6})
      .Running({.id = "e", .slots = 1, .most_slots = 6}, "n", {0, 1, 2, 3, 4, 5});
  for (int i = 0; i < 8; ++i) {
    s.Queued({.id = absl::StrCat("x", i), .slots = 2, .age_seconds = 9 - i});
  }
  EXPECT_THAT(Resizes(Decide(s)),
              ElementsAre("uid-e: resized 6 -> 2: job x0 of priority 0 and 1 more wait"));
}

TEST(Elastic, OfSeveralTheLeastImportantGivesThenTheOneWithMost) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 9})
      .Running({.id = "a", .slots = 1, .priority = 1, .most_slots = 3}, "n", {0, 1, 2})
      .Running({.id = "b", .slots = 1, .most_slots = 2}, "n", {3, 4})
      .Running({.id = "c", .slots = 1, .most_slots = 4}, "n", {5, 6, 7, 8})
      .Queued({.id = "x", .slots = 2, .priority = 1});
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre("uid-c: resized 4 -> 2: job x of priority 1 waits"));
}

TEST(Elastic, WhatIsAboutToComeFreeIsWaitedFor) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4})
      .Running({.id = "e", .slots = 1, .most_slots = 2}, "n", {0, 1})
      .Running({.id = "p", .slots = 2}, "n", {2, 3}, JobState::kSuspending)
      .Queued({.id = "x", .slots = 2, .age_seconds = 5});
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
  s.Queued({.id = "y", .slots = 1});  // and that is for x
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre("uid-e: resized 2 -> 1: job y of priority 0 waits"));
}

TEST(Elastic, SlotsOfAnotherKindAreNotTaken) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2})
      .Node({.name = "big", .cpu = 1, .bytes = int64_t{64} << 30})
      .Running({.id = "e", .slots = 1, .most_slots = 2}, "n", {0, 1})
      .Running({.id = "f"}, "big", {0})
      .Queued({.id = "x", .bytes = int64_t{32} << 30});
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
}

TEST(Elastic, NothingShrinksForWhoStandsBehindAJobThatCannotStart) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4})
      .Running({.id = "e", .slots = 2, .most_slots = 3}, "n", {0, 1, 2})
      .Running({.id = "f"}, "n", {3})
      .Queued({.id = "wide", .slots = 4, .age_seconds = 9})
      .Queued({.id = "x"});
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
}

TEST(Elastic, AResizedJobGetsWhatWasKeptForItBeforeAnybodyElse) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4})
      .Queued({.id = "urgent", .slots = 2, .priority = 9})
      .Queued({.id = "e", .slots = 1, .most_slots = 4});
  JobRecord& e = LastJob(s);
  e.attempt = 1;
  e.reason = {reason::kResizing, "resized 4 -> 2: job urgent of priority 9 waits"};
  e.resize = ResizeRecord{.attempt = 1, .ranks = {{"n", {1}}, {"n", {3}}}};
  const Pass pass = Decide(s);
  EXPECT_THAT(PlacedSlots(pass), ElementsAre("uid-e n/1 n/3", "uid-urgent n/0 n/2"));
  EXPECT_EQ(pass.decisions.placements[0].reason.code, reason::kResizing);

  LastJob(s).resize->ranks[1].node = "gone";  // it goes on with what is left
  EXPECT_THAT(PlacedSlots(Decide(s)), ElementsAre("uid-e n/1", "uid-urgent n/0 n/2"));
  LastJob(s).min_slots = 2;  // too little is left: it waits in its turn
  EXPECT_THAT(PlacedSlots(Decide(s)), ElementsAre("uid-urgent n/0 n/1", "uid-e n/2 n/3"));
  LastJob(s).resize->attempt = 0;  // of an attempt that is over for long
  EXPECT_THAT(PlacedSlots(Decide(s)), ElementsAre("uid-urgent n/0 n/1", "uid-e n/2 n/3"));
}

TEST(Elastic, SlotsAreKeptWhileTheGangLeaves) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 3})
      .Running({.id = "e", .slots = 1, .most_slots = 3}, "n", {0}, JobState::kSuspending);
  JobRecord& e = LastJob(s);
  e.reason = {reason::kResizing, "resized 1 -> 2: no waiting job could use 1 more"};
  e.resize = ResizeRecord{.attempt = 1, .ranks = {{"n", {0}}, {"n", {1}}}};
  s.Queued({.id = "x", .age_seconds = 3}).Queued({.id = "y", .age_seconds = 1});
  EXPECT_THAT(PlacedSlots(Decide(s)), ElementsAre("uid-x n/2"));
}

TEST(Elastic, AJobGrowsWhereSlotsHaveBeenSpareForAWhile) {
  const auto after = [](absl::Duration spare) {
    Snapshots s;
    s.Node({.name = "n", .cpu = 4, .lease_left = absl::Hours(9)})
        .Running({.id = "e", .slots = 1, .most_slots = 3}, "n", {0});
    return Decide(SpareFor(s, spare));
  };
  const Pass pass = after(absl::Seconds(61));
  EXPECT_THAT(Resizes(pass), ElementsAre("uid-e: resized 1 -> 3: no waiting job could use 2 more"));
  EXPECT_TRUE(pass.decisions.resizes[0].grows);
  EXPECT_EQ(Slots(pass.decisions.resizes[0].ranks), "n/0 n/1 n/2");
  const Pass early = after(absl::Seconds(20));
  EXPECT_THAT(Resizes(early), IsEmpty());
  EXPECT_EQ(early.next, TestNow() + absl::Seconds(40));
  EXPECT_THAT(*early.spare, ElementsAre("uid-e"));
}

TEST(Elastic, AJobDoesNotGrowIntoWhatAWaitingJobCouldUse) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4, .lease_left = absl::Hours(9)})
      .Running({.id = "e", .slots = 1, .most_slots = 3}, "n", {0});
  SpareFor(s, absl::Hours(1)).Queued({.id = "x", .slots = 4});
  const Pass pass = Decide(s);
  EXPECT_THAT(Resizes(pass), IsEmpty());
  EXPECT_THAT(*pass.spare, IsEmpty());
}

TEST(Elastic, AJobGrowsOnlyWhereItGetsFaster) {
  const auto with = [](int logical) {
    Snapshots s;
    s.Node({.name = "n", .cpu = 5})
        .Running({.id = "e", .slots = 1, .most_slots = 8, .logical_ranks = logical}, "n", {0, 1});
    return Resizes(Decide(SpareFor(s, absl::Hours(1))));
  };
  EXPECT_THAT(with(8), ElementsAre(HasSubstr("resized 2 -> 4")));  // five host as many as four
  EXPECT_THAT(with(6), ElementsAre(HasSubstr("resized 2 -> 3")));
  EXPECT_THAT(with(9), ElementsAre(HasSubstr("resized 2 -> 5")));
}

TEST(Elastic, AJobGrowsSeldomAndAfterItHasRunForLongAgainstItsStart) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4, .lease_left = absl::Hours(9)})
      .Running({.id = "e", .slots = 1, .most_slots = 3}, "n", {0});
  SpareFor(s, absl::Hours(1));
  LastJob(s).resize.emplace();
  for (const int minutes : {50, 40, 30, 20}) {
    LastJob(s).resize->growths.push_back(TestNow() - absl::Minutes(minutes));
  }
  const Pass pass = Decide(s);
  EXPECT_THAT(Resizes(pass), IsEmpty());
  EXPECT_EQ(pass.next, TestNow() + absl::Minutes(10));
  LastJob(s).resize->growths.pop_back();
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre(HasSubstr("resized 1 -> 3")));

  // Its start took half a minute, and it has run for four.
  LastJob(s).update_time = TestNow() - absl::Minutes(4);
  s.snapshot.attempts.back().create_time = TestNow() - absl::Minutes(4) - absl::Seconds(30);
  EXPECT_EQ(Decide(s).next, TestNow() + absl::Minutes(1));
}

TEST(Elastic, AJobGoesOnWithoutADrainedNode) {
  const auto with = [](int least) {
    Snapshots s;
    s.Node({.name = "n", .cpu = 2}).Node({.name = "m", .cpu = 2, .draining = true});
    s.Running({.id = "e", .slots = least, .most_slots = 3}, "n", {0, 1});
    s.snapshot.attempts.back().ranks.push_back(
        {.id = {"uid-e", 1, 2}, .node = "m", .slots = {0}, .state = RankState::kRunning});
    return Decide(s);
  };
  EXPECT_THAT(Resizes(with(1)), ElementsAre("uid-e: resized 3 -> 2: nodes/m is drained"));
  EXPECT_THAT(with(1).decisions.suspensions, IsEmpty());
  EXPECT_THAT(Resizes(with(3)), IsEmpty());
  EXPECT_EQ(with(3).decisions.suspensions.size(), 1u);
}

// It has the state in its memory then.
TEST(Elastic, TheNodeOfRankZeroStaysWhereAnotherOneServesAsWell) {
  for (const std::string& first : {std::string("l"), std::string("m"), std::string("n")}) {
    Snapshots s;
    for (const char* node : {"l", "m", "n"}) s.Node({.name = node, .cpu = 1});
    s.Running({.id = "e", .slots = 1, .most_slots = 3}, first, {0});
    for (const char* node : {"l", "m", "n"}) {
      if (node == first) continue;
      std::vector<RankRecord>& ranks = s.snapshot.attempts.back().ranks;
      ranks.push_back({.id = {"uid-e", 1, static_cast<int>(ranks.size())},
                       .node = node,
                       .slots = {0},
                       .state = RankState::kRunning});
    }
    s.Queued({.id = "x", .slots = 2});
    const Pass pass = Decide(s);
    ASSERT_EQ(pass.decisions.resizes.size(), 1u);
    EXPECT_EQ(Slots(pass.decisions.resizes[0].ranks), first + "/0");
  }
}

TEST(Elastic, WhatAUserAskedForIsDoneAtOnce) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 6}).Running({.id = "e", .slots = 2, .most_slots = 4}, "n", {0, 1, 2});
  LastJob(s).max_slots = 2;
  EXPECT_THAT(Resizes(Decide(s)),
              ElementsAre("uid-e: resized 3 -> 2: it was asked to take at most 2"));
  LastJob(s).min_slots = LastJob(s).max_slots = 5;
  const Pass pass = Decide(s);
  EXPECT_THAT(Resizes(pass), ElementsAre("uid-e: resized 3 -> 5: it was asked to take at least 5"));
  EXPECT_FALSE(pass.decisions.resizes[0].grows);  // does not count against the limit
  LastJob(s).min_slots = LastJob(s).max_slots = 7;
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());  // runs on with what it has
}

TEST(Elastic, AJobThatStartsOrWhoseRankIsGoneIsLeftAlone) {
  for (const JobState state : {JobState::kStarting, JobState::kSuspending, JobState::kCancelling}) {
    Snapshots s;
    s.Node({.name = "n", .cpu = 2})
        .Running({.id = "e", .slots = 1, .most_slots = 2}, "n", {0, 1}, state)
        .Queued({.id = "x", .priority = 5});
    EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
  }
  Snapshots s;
  s.Node({.name = "n", .cpu = 2})
      .Running({.id = "e", .slots = 1, .most_slots = 2}, "n", {0, 1})
      .Queued({.id = "x", .priority = 5});
  s.snapshot.attempts[0].ranks[1].outcome = RankOutcome::kFailed;
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
}

// Ranks of groups that share logical ranks come and go as whole groups.
const JobSpecs kPairs{.id = "e", .slots = 2, .most_slots = 6, .logical_ranks = 3, .step = 2};

TEST(ElasticGroups, StartAsManyAsThereIsRoomFor) {
  EXPECT_THAT(
      PlacedSlots(Decide(
          Snapshots().Node({.name = "n", .cpu = 3}).Node({.name = "o", .cpu = 2}).Queued(kPairs))),
      ElementsAre("uid-e o/0 o/1 n/0 n/1"));
  EXPECT_THAT(PlacedSlots(Decide(Snapshots().Node({.name = "n", .cpu = 3}).Queued(kPairs))),
              ElementsAre("uid-e n/0 n/1"));
}

TEST(ElasticGroups, GiveWayAsAWhole) {
  const auto with = [](int slots) {
    Snapshots s;
    s.Node({.name = "n", .cpu = 6})
        .Running(kPairs, "n", {0, 1, 2, 3, 4, 5})
        .Queued({.id = "x", .slots = slots});
    return Resizes(Decide(s));
  };
  EXPECT_THAT(with(1), ElementsAre("uid-e: resized 6 -> 4: job x of priority 0 waits"));
  EXPECT_THAT(with(2), ElementsAre("uid-e: resized 6 -> 4: job x of priority 0 waits"));
  EXPECT_THAT(with(3), ElementsAre("uid-e: resized 6 -> 2: job x of priority 0 waits"));
  EXPECT_THAT(with(4), ElementsAre("uid-e: resized 6 -> 2: job x of priority 0 waits"));
  EXPECT_THAT(with(5), IsEmpty());
}

TEST(ElasticGroups, ThatWouldGiveMoreThanIsAskedForAreSpared) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 9})
      .Running(kPairs, "n", {0, 1, 2, 3, 4, 5})
      .Running({.id = "f", .slots = 1, .most_slots = 3}, "n", {6, 7, 8})
      .Queued({.id = "x"});
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre("uid-f: resized 3 -> 2: job x of priority 0 waits"));
}

// With the slot that is of use goes one that is not.
TEST(ElasticGroups, GiveWayWithSlotsThatNobodyAskedFor) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 3})
      .Node({.name = "big", .cpu = 1, .bytes = int64_t{64} << 30})
      .Running(kPairs, "n", {0, 1, 2, 0})
      .Queued({.id = "x", .bytes = int64_t{32} << 30});
  s.snapshot.attempts.back().ranks[3].node = "big";
  const Pass pass = Decide(s);
  ASSERT_THAT(Resizes(pass), ElementsAre("uid-e: resized 4 -> 2: job x of priority 0 waits"));
  for (const Placement::Rank& rank : pass.decisions.resizes[0].ranks) EXPECT_EQ(rank.node, "n");
}

TEST(ElasticGroups, GrowByWholeGroups) {
  const auto with = [](int slots, int logical_ranks) {
    Snapshots s;
    JobSpecs pairs = kPairs;
    pairs.logical_ranks = logical_ranks;
    s.Node({.name = "n", .cpu = slots, .lease_left = absl::Hours(9)}).Running(pairs, "n", {0, 1});
    return Resizes(Decide(SpareFor(s, absl::Hours(1))));
  };
  EXPECT_THAT(with(3, 3), IsEmpty());
  EXPECT_THAT(with(5, 2), ElementsAre("uid-e: resized 2 -> 4: no waiting job could use 2 more"));
  EXPECT_THAT(with(6, 3), ElementsAre("uid-e: resized 2 -> 6: no waiting job could use 4 more"));
  EXPECT_THAT(with(6, 4), ElementsAre("uid-e: resized 2 -> 4: no waiting job could use 2 more"))
      << "four logical ranks are no faster on three groups";
}

TEST(Elastic, WritesACheckpointBeforeANodeOfItsLeaves) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1})
      .Node({.name = "m", .cpu = 1, .draining = true})
      .Node({.name = "l", .cpu = 1, .leaves_in = absl::Seconds(9)});
  s.Running({.id = "e", .slots = 1, .most_slots = 3}, "n", {0, 0, 0});
  s.snapshot.attempts.back().ranks[1].node = "m";
  s.snapshot.attempts.back().ranks[2].node = "l";
  const Pass pass = Decide(s);
  EXPECT_THAT(Resizes(pass), IsEmpty());
  ASSERT_EQ(pass.decisions.suspensions.size(), 1u);
  EXPECT_EQ(pass.decisions.suspensions[0].grace, absl::Seconds(9));
}

TEST(ElasticGroups, GoOnWithoutADrainedNode) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 3}).Node({.name = "m", .cpu = 1, .draining = true});
  s.Running(kPairs, "n", {0, 1, 2, 0});
  s.snapshot.attempts.back().ranks[3].node = "m";
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre("uid-e: resized 4 -> 2: nodes/m is drained"));
  // The slot that it leaves on the other node is one that is about to come free.
  s.Node({.name = "o", .cpu = 2})
      .Running({.id = "f", .slots = 1, .most_slots = 2}, "o", {0, 1})
      .Queued({.id = "x"});
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre("uid-e: resized 4 -> 2: nodes/m is drained"));
}

TEST(ElasticGroups, AResizedJobGetsWholeGroupsOfWhatIsLeft) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4}).Queued(kPairs);
  JobRecord& e = LastJob(s);
  e.attempt = 1;
  e.reason = {reason::kResizing, "resized 6 -> 4: job x of priority 9 waits"};
  e.resize =
      ResizeRecord{.attempt = 1, .ranks = {{"n", {1}}, {"gone", {0}}, {"n", {2}}, {"n", {3}}}};
  const Pass pass = Decide(s);
  EXPECT_EQ(pass.decisions.placements[0].reason.message,
            "resized 6 -> 4: job x of priority 9 waits; of these slots 3 are left, of which it "
            "takes 2");
}

TEST(ElasticLayouts, TheGangIsResizedToGoOnInAnotherOne) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4}).Running({.id = "e", .slots = 2}, "n", {0, 1});
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
  LastJob(s).layout = "new";
  const Pass pass = Decide(s);
  ASSERT_THAT(Resizes(pass),
              ElementsAre("uid-e: resized 2 -> 2: it was asked to go on in another layout"));
  EXPECT_FALSE(pass.decisions.resizes[0].grows);
  s.snapshot.attempts.back().layout = "new";
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
}

TEST(ElasticLayouts, WhatIsBeyondItsWholeGroupsIsGivenUp) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 3}).Running({.id = "e", .slots = 1, .most_slots = 3}, "n", {0, 1, 2});
  s.Queued({.id = "x"});
  JobRecord& e = s.snapshot.jobs[0];
  e.layout = "pairs";
  e.min_slots = e.slot_step = e.group_ranks = 2;
  e.max_slots = 4;
  EXPECT_THAT(Resizes(Decide(s)),
              ElementsAre("uid-e: resized 3 -> 2: it was asked to go on in another layout"));
}

TEST(ElasticLayouts, AGangRunsInItsOldOneUntilTheNewOneHasItsSlots) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 5}).Running({.id = "e", .slots = 2}, "n", {0, 1});
  JobRecord& e = s.snapshot.jobs[0];
  e.layout = "fours";
  e.min_slots = e.max_slots = e.slot_step = 4;
  EXPECT_THAT(Resizes(Decide(s)),
              ElementsAre("uid-e: resized 2 -> 4: it was asked to go on in another layout"));
  s.Running({.id = "f", .slots = 3}, "n", {2, 3, 4});
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
  EXPECT_THAT(
      Explain(s.snapshot.jobs[0], {s.snapshot.attempts[0]}, s.snapshot, PlannerOptions{}).details,
      Contains(HasSubstr("goes on in the layout that it was asked for once")));
}

// Slots that held their share of it in the old layout may be too small for that of the new one.
TEST(ElasticLayouts, ItTakesSlotsThatHoldItInTheNewOne) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2})
      .Node({.name = "big", .cpu = 2, .bytes = int64_t{64} << 30})
      .Running({.id = "e", .slots = 1, .most_slots = 2}, "n", {0, 1});
  s.snapshot.attempts.back().ranks[1].node = "big";
  LastJob(s).layout = "new";
  LastJob(s).bytes_per_slot = int64_t{32} << 30;
  const Pass one_stays = Decide(s);
  ASSERT_THAT(Resizes(one_stays),
              ElementsAre("uid-e: resized 2 -> 1: it was asked to go on in another layout"));
  EXPECT_EQ(Slots(one_stays.decisions.resizes[0].ranks), "big/1");
  LastJob(s).min_slots = 2;
  const Pass other = Decide(s);
  ASSERT_THAT(Resizes(other),
              ElementsAre("uid-e: resized 2 -> 2: it was asked to go on in another layout"));
  EXPECT_EQ(Slots(other.decisions.resizes[0].ranks), "big/1 big/0");
  LastJob(s).min_slots = LastJob(s).max_slots = 3;
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());  // runs on
  // Nor is it put on small ones if it was told of the layout when its gang had left already.
  LastJob(s).min_slots = 2;
  JobRecord& e = LastJob(s);
  e.state = JobState::kQueued;
  e.reason = {reason::kResizing, "resized"};
  e.resize = ResizeRecord{.attempt = e.attempt, .ranks = {{"n", {0}}, {"big", {1}}}};
  s.snapshot.attempts.clear();
  EXPECT_THAT(PlacedSlots(Decide(s)), ElementsAre("uid-e big/0 big/1"));
  e.resize->layout = e.layout;  // it was decided for this layout
  EXPECT_THAT(PlacedSlots(Decide(s)), ElementsAre("uid-e n/0 big/1"));
}

// With fewer slots it would go on in the new layout, which they do not hold.
TEST(ElasticLayouts, AGangThatWaitsForLargerSlotsGivesNoneAway) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4})
      .Running({.id = "e", .slots = 2, .most_slots = 4}, "n", {0, 1, 2, 3});
  s.Queued({.id = "x"});
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre("uid-e: resized 4 -> 3: job x of priority 0 waits"));
  JobRecord& e = s.snapshot.jobs[0];
  e.layout = "new";
  e.bytes_per_slot = int64_t{32} << 30;
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
  e.max_slots = 3;
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
  s.snapshot.nodes[0].draining = true;
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
}

TEST(Elastic, OfItsSlotsItKeepsThoseThatHoldWhatItNeedsNow) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 2})
      .Node({.name = "big", .cpu = 2, .bytes = int64_t{64} << 30})
      .Running({.id = "e", .slots = 4}, "n", {0, 1, 0, 1});
  for (const size_t rank : {2, 3}) s.snapshot.attempts.back().ranks[rank].node = "big";
  LastJob(s).min_slots = LastJob(s).max_slots = 2;
  LastJob(s).bytes_per_slot = int64_t{32} << 30;
  const Pass pass = Decide(s);
  ASSERT_THAT(Resizes(pass), ElementsAre("uid-e: resized 4 -> 2: it was asked to take at most 2"));
  EXPECT_EQ(Slots(pass.decisions.resizes[0].ranks), "big/0 big/1");
}

TEST(ElasticLayouts, AGangWithARankOnACordonedNodeRunsOn) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1}).Node({.name = "m", .cpu = 1});
  s.Running({.id = "e", .slots = 2}, "n", {0, 0});
  s.snapshot.attempts.back().ranks[1].node = "m";
  s.snapshot.nodes[1].cordon = "its disk is full";
  LastJob(s).layout = "new";
  EXPECT_THAT(Resizes(Decide(s)), IsEmpty());
}

TEST(ElasticLayouts, ADrainedNodeIsLeftByTheWholeGang) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4}).Node({.name = "m", .cpu = 1, .draining = true});
  s.Running({.id = "e", .slots = 2, .most_slots = 3}, "n", {0, 1, 0});
  s.snapshot.attempts.back().ranks[2].node = "m";
  EXPECT_THAT(Resizes(Decide(s)), ElementsAre("uid-e: resized 3 -> 2: nodes/m is drained"));
  // Whether the slots on n hold it in the new one, it finds out when it is placed.
  LastJob(s).layout = "new";
  const Pass pass = Decide(s);
  EXPECT_THAT(Resizes(pass), IsEmpty());
  EXPECT_EQ(pass.decisions.suspensions.size(), 1u);
}

TEST(Elastic, ExplainSaysHowManySlotsAndWhyNotMore) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4})
      .Running({.id = "e", .slots = 1, .most_slots = 4, .logical_ranks = 4}, "n", {0, 1});
  const auto explained = [&s] {
    return Explain(LastJob(s), {s.snapshot.attempts.back()}, s.snapshot, PlannerOptions{}).details;
  };
  EXPECT_THAT(explained(), Contains("runs on 2 slots; it may have 1 to 4 slots"));
  EXPECT_THAT(explained(), Contains(HasSubstr("takes more slots once")));
  LastJob(s).max_slots = 3;
  EXPECT_THAT(explained(), Contains(HasSubstr("more slots would not make it faster")));
}

// The way of a job through a resize, as its users are told.

}  // namespace
}  // namespace trainyard
