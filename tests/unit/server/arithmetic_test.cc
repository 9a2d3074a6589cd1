// Gangs are placed on slots that compute alike, and bound jobs where they began.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/elastic.h"
#include "server/scheduler/explain.h"
#include "server/scheduler/slots.h"
#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Arithmetic kWide = {{"device", "CPU"}, {"loops", "avx512"}};
const Arithmetic kNarrow = {{"device", "CPU"}, {"loops", "avx2"}};
constexpr char kWideText[] = "device: CPU; loops: avx512";
constexpr char kNarrowText[] = "device: CPU; loops: avx2";

// "uid-a: n/0 m/1"
std::vector<std::string> WhereOf(const Pass& pass) {
  std::vector<std::string> texts;
  for (const Placement& placement : pass.decisions.placements) {
    std::string text = placement.job_uid + ":";
    for (const auto& rank : placement.ranks) {
      absl::StrAppend(&text, " ", rank.node, "/", absl::StrJoin(rank.slots, "+"));
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

// Two nodes that compute in two ways, of three slots each.
Snapshots TwoKinds() {
  return Snapshots()
      .Node({.name = "n", .cpu = 3, .arithmetic = kNarrow})
      .Node({.name = "w", .cpu = 3, .arithmetic = kWide});
}

Explanation ExplainLast(const Snapshots& s) {
  return Explain(s.snapshot.jobs.back(), {}, s.snapshot, PlannerOptions{});
}

TEST(Alike, AGangIsNotPutOverSlotsThatComputeDifferently) {
  const Pass pass = PassOver(TwoKinds().Queued({.id = "g", .slots = 4}));
  EXPECT_THAT(WhereOf(pass), IsEmpty());
  ASSERT_EQ(pass.decisions.reasons.size(), 1u);
  EXPECT_EQ(pass.decisions.reasons[0].reason.code, reason::kFitsNoNode);
  EXPECT_EQ(pass.decisions.reasons[0].reason.message,
            "needs 4 slots of 1.0 GiB; the nodes that take work cannot hold it on slots that "
            "compute alike (parallel.arithmetic)");
}

TEST(Alike, AGangThatMayBeMixedIs) {
  EXPECT_THAT(
      WhereOf(PassOver(TwoKinds().Queued({.id = "g", .slots = 4, .rule = ArithmeticRule::kAny}))),
      ElementsAre("uid-g: n/0 n/1 n/2 w/0"));
}

TEST(Alike, AGangOfAServerOfBeforeIsMixedOnlyIfItMust) {
  const ArithmeticRule unknown = ArithmeticRule::kUnknown;
  EXPECT_THAT(WhereOf(PassOver(TwoKinds().Queued({.id = "g", .slots = 4, .rule = unknown}))),
              ElementsAre("uid-g: n/0 n/1 n/2 w/0"));
  const Snapshots busy = TwoKinds()
                             .Running({.id = "r"}, "n", {0, 1})
                             .Running({.id = "s"}, "w", {0})
                             .Queued({.id = "g", .slots = 3, .rule = unknown});
  EXPECT_THAT(WhereOf(PassOver(busy)), IsEmpty()) << "three that compute alike will be free";
}

TEST(Alike, WhatIsNotKnownToChangeBitsDoesNotMatter) {
  Arithmetic other = kWide;
  other["caches"] = "64 KiB";
  other["glibc"] = "2.36";
  EXPECT_THAT(WhereOf(PassOver(Snapshots()
                                   .Node({.name = "v", .cpu = 1, .arithmetic = other})
                                   .Node({.name = "w", .cpu = 1, .arithmetic = kWide})
                                   .Queued({.id = "g", .slots = 2}))),
              ElementsAre("uid-g: v/0 w/0"));
}

TEST(Alike, NodesThatDoNotSayCountAsAlikeAndAsNobodyElse) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 1})
      .Node({.name = "b", .cpu = 1})
      .Node({.name = "w", .cpu = 1, .arithmetic = kWide})
      .Queued({.id = "g", .slots = 2});
  EXPECT_THAT(WhereOf(PassOver(s)), ElementsAre("uid-g: a/0 b/0"));
  s.Running({.id = "r"}, "a", {0});
  EXPECT_THAT(WhereOf(PassOver(s)), IsEmpty());
}

TEST(Alike, OneNodeMayHaveSlotsOfTwoKinds) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4, .arithmetic = kWide});
  for (int slot : {0, 2}) s.snapshot.nodes[0].slots[slot].arithmetic = kNarrow;
  s.Queued({.id = "g", .slots = 2, .age_seconds = 9})
      .Queued({.id = "h", .slots = 2, .age_seconds = 8})
      .Queued({.id = "i", .slots = 2});
  EXPECT_THAT(WhereOf(PassOver(s)), ElementsAre("uid-g: n/0 n/2", "uid-h: n/1 n/3"));
}

TEST(Alike, OfKindsThatDoTheFewestNodesAreTakenThenThoseWithLeastToSpare) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 1, .arithmetic = kNarrow})
      .Node({.name = "b", .cpu = 1, .arithmetic = kNarrow})
      .Node({.name = "c", .cpu = 4, .arithmetic = kWide})
      .Queued({.id = "g", .slots = 2});
  EXPECT_THAT(WhereOf(PassOver(s)), ElementsAre("uid-g: c/0 c/1"));
  Snapshots equal;
  equal.Node({.name = "c", .cpu = 4, .arithmetic = kNarrow})
      .Node({.name = "d", .cpu = 2, .arithmetic = kWide})
      .Queued({.id = "g", .slots = 2});
  EXPECT_THAT(WhereOf(PassOver(equal)), ElementsAre("uid-g: d/0 d/1"));
}

TEST(Alike, AGangThatWaitsKeepsNothingOfAKindThatCouldNeverHoldIt) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1, .arithmetic = kNarrow})
      .Node({.name = "w", .cpu = 2, .arithmetic = kWide})
      .Running({.id = "r"}, "w", {0})
      .Queued({.id = "g", .slots = 2, .age_seconds = 9})
      .Queued({.id = "one"})
      .Queued({.id = "two"});
  EXPECT_THAT(WhereOf(PassOver(s)), ElementsAre("uid-one: n/0")) << "w/1 is kept for the gang";
}

TEST(Bound, AJobIsPlacedOnlyWhereItComputesAsItBegan) {
  const JobSpecs bound{.id = "s", .rule = ArithmeticRule::kSame, .arithmetic = kWideText};
  EXPECT_THAT(WhereOf(PassOver(TwoKinds().Queued(bound))), ElementsAre("uid-s: w/0"));
  const Pass pass = PassOver(TwoKinds().Running({.id = "r"}, "w", {0, 1, 2}).Queued(bound));
  EXPECT_THAT(WhereOf(pass), IsEmpty());
  ASSERT_EQ(pass.decisions.reasons.size(), 1u);
  EXPECT_EQ(pass.decisions.reasons[0].reason.message,
            "needs 1 slot of 1.0 GiB that computes as it began; too few such slots are free");
}

TEST(Bound, NodesThatDoNotSayDoNotServe) {
  const Pass pass =
      PassOver(Snapshots()
                   .Node({.name = "a", .cpu = 1})
                   .Queued({.id = "s", .rule = ArithmeticRule::kSame, .arithmetic = kWideText}));
  EXPECT_THAT(WhereOf(pass), IsEmpty());
  ASSERT_EQ(pass.decisions.reasons.size(), 1u);
  EXPECT_EQ(pass.decisions.reasons[0].reason.message,
            "needs 1 slot of 1.0 GiB that computes as it began; the nodes that take work cannot "
            "hold it on such slots (parallel.arithmetic is SAME)");
}

TEST(Bound, OneThatHasNotBegunGoesAnywhereAndOnlyOneOfTheRuleIsBound) {
  EXPECT_THAT(
      WhereOf(PassOver(Snapshots()
                           .Node({.name = "n", .cpu = 2, .arithmetic = kNarrow})
                           .Queued({.id = "new", .rule = ArithmeticRule::kSame, .arithmetic = ""})
                           .Queued({.id = "other", .arithmetic = kWideText}))),
      ElementsAre("uid-new: n/0", "uid-other: n/1"));
}

TEST(Bound, TwoThatBeganDifferentlyDoNotWaitForEachOther) {
  const ArithmeticRule same = ArithmeticRule::kSame;
  EXPECT_THAT(
      WhereOf(PassOver(
          TwoKinds()
              .Running({.id = "r"}, "w", {0, 1})
              .Queued(
                  {.id = "a", .slots = 2, .age_seconds = 9, .rule = same, .arithmetic = kWideText})
              .Queued({.id = "b", .slots = 2, .rule = same, .arithmetic = kNarrowText}))),
      ElementsAre("uid-b: n/0 n/1"));
}

TEST(Alike, AnElasticJobStartsWhereItGetsMostAndTakesNoOtherKind) {
  EXPECT_THAT(WhereOf(PassOver(Snapshots()
                                   .Node({.name = "a", .cpu = 1, .arithmetic = kNarrow})
                                   .Node({.name = "b", .cpu = 3, .arithmetic = kWide})
                                   .Queued({.id = "e", .slots = 1, .most_slots = 4}))),
              ElementsAre("uid-e: b/0 b/1 b/2"));
}

// A job that has run long enough to grow, beside slots that have been spare for as long.
Snapshots& ReadyToGrow(Snapshots& s) {
  s.snapshot.attempts.back().spare_since = TestNow() - absl::Hours(1);
  s.snapshot.attempts.back().create_time = TestNow() - absl::Hours(1);
  s.snapshot.jobs.back().update_time = TestNow() - absl::Hours(1);
  return s;
}

std::vector<Placement::Rank> ResizedTo(const Pass& pass) {
  return pass.decisions.resizes.empty() ? std::vector<Placement::Rank>()
                                        : pass.decisions.resizes[0].ranks;
}

TEST(Alike, ARunningJobGrowsByItsOwnKindAlone) {
  Snapshots s = TwoKinds();
  s.Running({.id = "e", .slots = 1, .most_slots = 6}, "w", {0});
  EXPECT_THAT(ResizedTo(PassOver(ReadyToGrow(s))),
              ElementsAre(RankSlots{"w", {0}}, RankSlots{"w", {1}}, RankSlots{"w", {2}}));
  Snapshots any = TwoKinds();
  any.Running({.id = "e", .slots = 1, .most_slots = 6, .rule = ArithmeticRule::kAny}, "w", {0});
  EXPECT_EQ(ResizedTo(PassOver(ReadyToGrow(any))).size(), 6u);
}

TEST(Alike, WhatAUserAsksForMovesAGangAsAWhole) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4, .arithmetic = kNarrow})
      .Node({.name = "w", .cpu = 2, .arithmetic = kWide})
      .Running({.id = "e", .slots = 3, .most_slots = 3}, "w", {0, 1});
  const Pass pass = PassOver(s);
  EXPECT_THAT(ResizedTo(pass),
              ElementsAre(RankSlots{"n", {0}}, RankSlots{"n", {1}}, RankSlots{"n", {2}}));
  EXPECT_EQ(pass.decisions.resizes[0].reason.message,
            "resized 2 -> 3: it was asked to take at least 3, and there are not so many that "
            "compute as those that it had");
  s.snapshot.jobs.back().arithmetic_rule = ArithmeticRule::kSame;
  s.snapshot.jobs.back().arithmetic = kWideText;
  EXPECT_THAT(ResizedTo(PassOver(s)), IsEmpty()) << "it is bound";
}

TEST(Alike, AnElasticJobGivesUpWhatTheOneThatWaitsCanUse) {
  Snapshots s = TwoKinds();
  s.Running({.id = "e", .slots = 1, .most_slots = 3}, "n", {0, 1, 2})
      .Running({.id = "f", .slots = 1, .most_slots = 3}, "w", {0, 1, 2})
      .Queued({.id = "g", .slots = 3, .priority = 1});
  EXPECT_THAT(PassOver(s).decisions.resizes, IsEmpty()) << "two of each kind do not serve";
  s.snapshot.jobs.back().min_slots = s.snapshot.jobs.back().max_slots = 2;
  EXPECT_EQ(PassOver(s).decisions.resizes.size(), 1u);
}

TEST(Alike, WhatIsKeptForAResizeIsNotMixedIfANodeComputesDifferentlyBy) {
  Snapshots s;
  s.Node({.name = "v", .cpu = 1, .arithmetic = kWide})
      .Node({.name = "w", .cpu = 1, .arithmetic = kWide})
      .Queued({.id = "e", .slots = 2});
  JobRecord& job = s.snapshot.jobs.back();
  job.attempt = 1;
  job.reason = {reason::kResizing, "resized 1 -> 2"};
  job.resize = ResizeRecord{.attempt = 1, .ranks = {{"v", {0}}, {"w", {0}}}};
  EXPECT_THAT(WhereOf(PassOver(s)), ElementsAre("uid-e: v/0 w/0"));
  s.snapshot.nodes[0].slots[0].arithmetic = kNarrow;
  EXPECT_THAT(WhereOf(PassOver(s)), IsEmpty());
}

TEST(ExplainAlike, SaysWhichKindsThereAreAndWhatCanBeDone) {
  const Explanation told =
      ExplainLast(TwoKinds().Running({.id = "r"}, "w", {0}).Queued({.id = "g", .slots = 4}));
  EXPECT_THAT(told.reason.message,
              HasSubstr("; its slots must compute alike, and of 6 that fit at most 3 do"));
  EXPECT_THAT(told.details,
              Contains("3 CPU slots fit, 3 free, on nodes/n: compute with 'device: CPU; loops: "
                       "avx2'"));
  EXPECT_THAT(told.details,
              Contains("3 CPU slots fit, 2 free, on nodes/w: compute with 'device: CPU; loops: "
                       "avx512'"));
  EXPECT_THAT(told.suggestions,
              Contains("with parallel.arithmetic ANY it would start now; the last digits of its "
                       "results then depend on which it gets"));
}

TEST(ExplainAlike, OneThatWaitsForSlotsIsToldLikewise) {
  const Snapshots s = TwoKinds()
                          .Running({.id = "r"}, "w", {0})
                          .Running({.id = "q"}, "n", {0})
                          .Queued({.id = "g", .slots = 3});
  const Explanation told = ExplainLast(s);
  EXPECT_THAT(told.reason.message,
              HasSubstr("2 of 3 are free; its slots must compute alike, and of 6 that fit at most "
                        "3 do"));
  EXPECT_EQ(told.suggestions.size(), 2u);
  EXPECT_EQ(PassOver(s).decisions.reasons[0].reason.message,
            "needs 3 slots of 1.0 GiB; too few such slots are free")
      << "what is stored says nothing that changes with placements";
}

TEST(ExplainAlike, ABoundJobIsToldWhatItBeganWithAndWhereItIsNot) {
  const Explanation told =
      ExplainLast(TwoKinds()
                      .Node({.name = "x", .cpu = 1})
                      .Running({.id = "r"}, "w", {0, 1, 2})
                      .Queued({.id = "s", .rule = ArithmeticRule::kSame, .arithmetic = kWideText}));
  EXPECT_THAT(told.reason.message,
              AllOf(HasSubstr("needs 1 slot of 1.0 GiB that computes as it began; 0 of 3 are free"),
                    HasSubstr("it began with 'device: CPU; loops: avx512': 3 of 7 slots that fit "
                              "compute so")));
  EXPECT_THAT(told.details,
              Contains("nodes/n: computes otherwise than the job began, or does not say how"));
  EXPECT_THAT(told.details, Contains(HasSubstr("loops: avx512', as the job began")));
  EXPECT_THAT(told.details, Contains(HasSubstr("loops: avx2', not as the job began")));
  EXPECT_THAT(told.details,
              Contains("1 CPU slot fits, 1 free, on nodes/x: agents that do not say what they "
                       "compute with, as older ones do not; they count as alike, not as the job "
                       "began"));
  EXPECT_THAT(told.suggestions, Contains(HasSubstr("is not bound to them, and would start now")));
}

TEST(ExplainAlike, NothingIsSaidWhereItDoesNotMatter) {
  const auto silent = [](const Snapshots& s) {
    const Explanation told = ExplainLast(s);
    EXPECT_THAT(told.reason.message, Not(HasSubstr("compute")));
    for (const std::string& detail : told.details) EXPECT_THAT(detail, Not(HasSubstr("compute")));
    EXPECT_THAT(told.suggestions, Not(Contains(HasSubstr("arithmetic"))));
  };
  silent(TwoKinds().Queued({.id = "one", .bytes = int64_t{1} << 40}));
  silent(TwoKinds().Queued({.id = "any", .slots = 7, .rule = ArithmeticRule::kAny}));
  silent(Snapshots()
             .Node({.name = "w", .cpu = 3, .arithmetic = kWide})
             .Queued({.id = "g", .slots = 4}));
}

TEST(ExplainAlike, OfManyNodesAFewAreNamed) {
  Snapshots s;
  for (int i = 0; i < 20; ++i) {
    s.Node({.name = absl::StrCat("n", 10 + i), .cpu = 1, .arithmetic = i % 2 ? kWide : kNarrow});
  }
  const Explanation told = ExplainLast(s.Queued({.id = "g", .slots = 11}));
  EXPECT_THAT(told.details,
              Contains(HasSubstr("10 CPU slots fit, 10 free, on nodes/n10, nodes/n12, nodes/n14, "
                                 "nodes/n16 and 6 more: compute with")));
}

}  // namespace
}  // namespace trainyard
