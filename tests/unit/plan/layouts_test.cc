#include "executor/plan/layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

bool Never() { return false; }

v1::JobSpec Cut(v1::JobSpec spec, int logical_ranks, int64_t batch_size) {
  spec.mutable_parallel()->set_logical_ranks(logical_ranks);
  spec.mutable_training()->set_batch_size(batch_size);
  spec.mutable_training()->set_micro_batch_size(1);
  return ResolveSpec(spec).value();
}

// Layouts in which every rank hosts all shards.
std::vector<JobLayout> Whole(const std::vector<int32_t>& slots) {
  std::vector<JobLayout> layouts;
  for (const int32_t n : slots) layouts.push_back({.slots = n});
  return layouts;
}

// A job of `shards` shards, which `sharing` ranks share.
v1::JobSpec CutInShards(int shards, int sharing, int logical_ranks) {
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_model()->mutable_gpt()->set_heads(8);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(sharing);
  spec.mutable_parallel()->set_tensor(shards);
  spec.mutable_parallel()->mutable_layout()->set_tensor(sharing);
  return Cut(spec, logical_ranks, 2 * logical_ranks);
}

std::vector<std::pair<int, int>> PairsOf(const std::vector<JobLayout>& layouts) {
  std::vector<std::pair<int, int>> pairs;
  for (const JobLayout& layout : layouts) pairs.emplace_back(layout.slots, layout.group.tensor);
  return pairs;
}

TEST(SlotsWorthHaving, AreTheFewestOfEachSpeed) {
  EXPECT_THAT(SlotsWorthHaving(1, 1, 64), ElementsAre(1));
  EXPECT_THAT(SlotsWorthHaving(8, 8, 64), ElementsAre(1, 2, 3, 4, 8));
  EXPECT_THAT(SlotsWorthHaving(7, 7, 64), ElementsAre(1, 2, 3, 4, 7));
  EXPECT_THAT(SlotsWorthHaving(8, 8, 3), ElementsAre(1, 3, 8));
  for (const int64_t logical : {2, 12, 97, 1024}) {
    std::vector<int32_t> expected;
    int64_t hosted = logical + 1;
    for (int32_t slots = 1; slots <= logical; ++slots) {
      const int64_t most = (logical + slots - 1) / slots;
      if (most < hosted) expected.push_back(slots);
      hosted = most;
    }
    EXPECT_EQ(SlotsWorthHaving(logical, logical, 1000), expected) << logical;
  }
  EXPECT_THAT(SlotsWorthHaving(65536, 65536, 64), SizeIs(64));
  EXPECT_EQ(SlotsWorthHaving(65536, 65536, 64).back(), 65536);
  EXPECT_THAT(SlotsWorthHaving(8, 6, 64), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(SlotsWorthHaving(65536, 1024, 64).back(), 1024);
}

TEST(Layouts, TellWhatThePlanOfEachSays) {
  const v1::JobSpec spec = Cut(CharGptSpec(), 8, 64);
  const DataFacts facts = TokenFacts(65);
  const auto layouts = PlanLayouts(spec, facts, Whole({1, 3, 8}), {}, Never);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  ASSERT_THAT(*layouts, SizeIs(3));
  for (const v1::LayoutPlan& layout : *layouts) {
    v1::JobSpec alone = spec;
    alone.mutable_resources()->set_min_slots(layout.slots());
    alone.mutable_resources()->set_max_slots(layout.slots());
    const v1::PlanSummary summary = BuildPlan(alone, facts)->summary;
    EXPECT_EQ(layout.bytes_per_slot(), summary.bytes_per_slot());
    EXPECT_EQ(layout.sent_bytes_per_step(), summary.sent_bytes_per_step());
    EXPECT_EQ(layout.step_seconds(), 0);
  }
  EXPECT_EQ((*layouts)[0].sent_bytes_per_step(), 0);
  EXPECT_GT((*layouts)[1].sent_bytes_per_step(), (*layouts)[2].sent_bytes_per_step())
      << "three ranks bring up to two sums each";
  EXPECT_EQ((*layouts)[1].logical_ranks_per_slot(), 3);
  EXPECT_DOUBLE_EQ((*layouts)[1].busy_share(), 8.0 / 9);
}

TEST(Layouts, EstimateStepsFromRates) {
  const v1::JobSpec spec = Cut(CharGptSpec(), 8, 64);
  const DataFacts facts = TokenFacts(65);
  const auto seconds = [&](double link) {
    std::vector<double> found;
    const Rates rates = {.flops_per_second = 1e12, .bytes_per_second = link};
    const auto layouts = PlanLayouts(spec, facts, Whole({1, 2, 4, 8}), rates, Never).value();
    for (const v1::LayoutPlan& layout : layouts) {
      found.push_back(layout.step_seconds());
    }
    return found;
  };
  const std::vector<double> fast = seconds(1e15), slow = seconds(1e8);
  const double flops = BuildPlan(spec, facts)->summary.flops_per_step();
  EXPECT_NEAR(fast[0], flops / 1e12, 0.01 * fast[0]);
  for (const size_t i : {1, 2, 3}) {
    EXPECT_NEAR(fast[i], fast[0] / static_cast<double>(1 << i), 0.01 * fast[0]);
    EXPECT_GT(slow[i], slow[0]) << "what is sent takes longer than the work that it saves";
  }
  EXPECT_EQ(seconds(0)[1], 0) << "no rate of the link is known";
}

TEST(Layouts, AreThoseThatWerePlannedInTimeSpreadOverAll) {
  for (const int most : {0, 1, 2, 3, 5, 9}) {
    int asked = 0;
    const auto layouts = PlanLayouts(Cut(GptSpec(), 8, 8), TokenFacts(65), Whole({1, 2, 4, 6, 8}),
                                     {}, [&] { return ++asked > most; });
    std::vector<int> slots;
    for (const v1::LayoutPlan& layout : layouts.value()) slots.push_back(layout.slots());
    const std::vector<int> all[] = {{}, {1}, {1, 8}, {1, 4, 8}, {1, 2, 4, 6, 8}};
    EXPECT_EQ(slots, all[std::min(most, 4)]) << most;
  }
}

TEST(Layouts, OfWhichOneDoesNotFitTellsTheOthers) {
  v1::JobSpec spec = Cut(CharGptSpec(), 8, 64);
  const DataFacts facts = TokenFacts(65);
  // The links of eight ranks take more than the budget leaves.
  const int64_t alone = (*PlanLayouts(spec, facts, Whole({1}), {}, Never))[0].bytes_per_slot();
  spec.mutable_training()->mutable_recompute()->set_slot_bytes(alone);
  const auto layouts = PlanLayouts(spec, facts, Whole({1, 8, 2}), {}, Never);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  ASSERT_THAT(*layouts, SizeIs(3));
  EXPECT_EQ((*layouts)[0].bytes_per_slot(), alone);
  EXPECT_THAT((*layouts)[1].refused(), HasSubstr("spec.training.recompute.slot_bytes"));
  EXPECT_EQ((*layouts)[1].slots(), 8);
  EXPECT_EQ((*layouts)[2].slots(), 2);
}

// The ranks that may share shards, of groups that are all one stage.
std::vector<int> TensorsWorthHaving(const v1::JobSpec& spec) {
  std::vector<int> tensors;
  for (const RankGroup& group : GroupsWorthHaving(spec)) {
    EXPECT_EQ(group.pipeline, 1);
    tensors.push_back(group.tensor);
  }
  return tensors;
}

std::vector<RankGroup> OneStage(const std::vector<int>& tensors) {
  std::vector<RankGroup> groups;
  for (const int tensor : tensors) groups.push_back({.tensor = tensor});
  return groups;
}

TEST(GroupsWorthHaving, AreTheFewestOfEachShareAndThatOfTheJob) {
  EXPECT_THAT(TensorsWorthHaving(Cut(CharGptSpec(), 8, 64)), ElementsAre(1));
  EXPECT_THAT(TensorsWorthHaving(CutInShards(8, 1, 4)), ElementsAre(1, 2, 3, 4, 8));
  EXPECT_THAT(TensorsWorthHaving(CutInShards(8, 6, 4)), ElementsAre(1, 2, 3, 4, 6, 8));
  v1::JobSpec recomputing = CutInShards(8, 1, 4);
  recomputing.mutable_training()->mutable_recompute()->set_activation_share(0.5);
  EXPECT_THAT(TensorsWorthHaving(recomputing), ElementsAre(1, 2, 3, 4, 8));
}

TEST(GroupsWorthHaving, HaveStagesOfAsManyLayersAndThoseOfTheJob) {
  v1::JobSpec spec = CutInShards(2, 1, 4);
  spec.mutable_model()->mutable_gpt()->set_layers(8);
  spec.mutable_parallel()->set_pipeline(6);
  spec.mutable_parallel()->mutable_layout()->set_pipeline(5);
  spec.mutable_resources()->set_min_slots(5);
  spec.mutable_resources()->set_max_slots(5);
  spec = ResolveSpec(spec).value();
  std::vector<std::pair<int, int>> groups;
  for (const RankGroup& group : GroupsWorthHaving(spec)) {
    groups.emplace_back(group.tensor, group.pipeline);
  }
  // 8, 4, 3, 2 layers; with 5 stages the largest has 2, too.
  EXPECT_THAT(groups, ElementsAre(Pair(1, 1), Pair(1, 2), Pair(1, 3), Pair(1, 4), Pair(1, 5),
                                  Pair(2, 1), Pair(2, 2), Pair(2, 3), Pair(2, 4), Pair(2, 5)));
  const auto layouts =
      PlanLayouts(spec, TokenFacts(65), LayoutsOn(spec, GroupsWorthHaving(spec), 8),
                  {.flops_per_second = 1e12, .bytes_per_second = 1e9}, Never);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  ASSERT_THAT(*layouts, SizeIs(5)) << "2, 4 and 8 ranks in a group; 8 groups are too many";
  for (const v1::LayoutPlan& layout : *layouts) {
    EXPECT_EQ(layout.refused(), "");
    EXPECT_GT(layout.step_seconds(), 0);
    EXPECT_EQ(8 % (layout.layout().tensor() * layout.layout().pipeline()), 0);
  }
}

TEST(LayoutsOn, AreThoseThatDivideTheSlotsAndHaveLogicalRanks) {
  const v1::JobSpec spec = CutInShards(4, 2, 3);
  EXPECT_THAT(PairsOf(LayoutsOn(spec, OneStage({1, 2, 4}), 2)),
              ElementsAre(Pair(2, 1), Pair(2, 2)));
  EXPECT_THAT(PairsOf(LayoutsOn(spec, OneStage({1, 2, 4}), 4)),
              ElementsAre(Pair(4, 2), Pair(4, 4)));
  EXPECT_THAT(PairsOf(LayoutsOn(spec, OneStage({1, 2, 4}), 12)), ElementsAre(Pair(12, 4)));
  EXPECT_THAT(PairsOf(LayoutsOn(spec, OneStage({2}), 3)), ElementsAre(Pair(3, 2)))
      << "to be refused";
}

TEST(LayoutsWorthHaving, HaveEachNumberOfSlotsInEachLayout) {
  EXPECT_THAT(PairsOf(LayoutsWorthHaving(CutInShards(4, 1, 2), OneStage({1, 2, 4}), 8, 64)),
              ElementsAre(Pair(1, 1), Pair(2, 1), Pair(2, 2), Pair(4, 2), Pair(4, 4), Pair(8, 4)));
  const v1::JobSpec many = CutInShards(8, 1, 512);
  const std::vector<JobLayout> some = LayoutsWorthHaving(many, OneStage({1, 2, 3, 4, 8}), 1024, 64);
  EXPECT_LE(some.size(), 64u);
  EXPECT_GT(some.size(), 50u);
  EXPECT_EQ(some.front(), (JobLayout{1, {1}}));
  EXPECT_EQ(some.back(), (JobLayout{1024, {8}}));
  for (const JobLayout& layout : some) EXPECT_EQ(layout.slots % layout.group.tensor, 0);
  EXPECT_EQ(LayoutsWorthHaving(Cut(GptSpec(), 1024, 1024), OneStage({1}), 1024, 64).size(), 63u);
}

TEST(Layouts, OfRanksThatShareShardsTellWhatTheirPlansSay) {
  const v1::JobSpec spec = CutInShards(4, 2, 2);
  const DataFacts facts = TokenFacts(65);
  const Rates rates = {.flops_per_second = 1e12, .bytes_per_second = 1e15};
  const std::vector<JobLayout> asked = {{4, {1}}, {2, {1}}, {2, {2}}, {4, {2}},
                                        {4, {4}}, {3, {2}}, {8, {4}}};
  const auto layouts = PlanLayouts(spec, facts, asked, rates, Never);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  ASSERT_THAT(*layouts, SizeIs(asked.size()));
  for (const v1::LayoutPlan& layout : *layouts) {
    v1::JobSpec alone = spec;
    alone.mutable_resources()->set_min_slots(layout.slots());
    alone.mutable_resources()->set_max_slots(layout.slots());
    *alone.mutable_parallel()->mutable_layout() = layout.layout();
    const auto resolved = ResolveSpec(alone);
    EXPECT_EQ(resolved.ok(), layout.refused().empty());
    if (!resolved.ok()) continue;
    const v1::PlanSummary summary = BuildPlan(*resolved, facts)->summary;
    EXPECT_EQ(layout.bytes_per_slot(), summary.bytes_per_slot());
    EXPECT_EQ(layout.sent_bytes_per_step(), summary.sent_bytes_per_step());
    EXPECT_GT(layout.step_seconds(), 0);
    EXPECT_GT(layout.busy_share(), 0.5);
    EXPECT_LE(layout.busy_share(), 1);
  }
  EXPECT_THAT((*layouts)[0].refused(), HasSubstr("2 cannot be shared by 4 slots"));
  EXPECT_THAT((*layouts)[5].refused(), HasSubstr("2 does not divide the 3 slots"));
  const v1::LayoutPlan &whole = (*layouts)[1], &shared = (*layouts)[2], &eight = (*layouts)[6];
  EXPECT_LT(shared.bytes_per_slot(), whole.bytes_per_slot());
  EXPECT_EQ(whole.logical_ranks_per_slot(), 1);
  EXPECT_EQ(shared.logical_ranks_per_slot(), 2);
  EXPECT_EQ(whole.busy_share(), 1);
  EXPECT_LT(shared.busy_share(), 1) << "both compute the norms";
  EXPECT_NEAR(shared.step_seconds(), whole.step_seconds() / shared.busy_share(),
              0.02 * whole.step_seconds());
  EXPECT_LT(eight.step_seconds(), 0.4 * whole.step_seconds());
  const auto slow = PlanLayouts(spec, facts, {{2, {2}}},
                                {.flops_per_second = 1e12, .bytes_per_second = 1e6}, Never);
  EXPECT_NEAR((*slow)[0].step_seconds(),
              static_cast<double>(shared.sent_bytes_per_step()) / 1e6 + shared.step_seconds(),
              1e-3 * (*slow)[0].step_seconds())
      << "they wait for all that one group exchanges";
}

TEST(AdviseOnLogicalRanks, NamesNumbersThatGroupsMayHave) {
  for (const int logical : {3, 5, 7, 8, 11}) {
    for (const int sharing : {1, 2, 3, 4}) {
      for (int groups = 1; groups <= logical; ++groups) {
        v1::JobSpec spec = CutInShards(4, sharing, logical);
        spec.mutable_training()->set_batch_size(logical * 12);
        spec.mutable_resources()->set_min_slots(groups * sharing);
        spec.mutable_resources()->set_max_slots(groups * sharing);
        const std::string advice = AdviseOnLogicalRanks(ResolveSpec(spec).value());
        const size_t slots = advice.find("it. "), ranks = advice.find("logical_ranks: ");
        if (slots != std::string::npos && advice.find("would be as fast") != std::string::npos) {
          const int n = std::atoi(advice.c_str() + slots + 4);
          spec.mutable_resources()->set_min_slots(n);
          spec.mutable_resources()->set_max_slots(n);
          EXPECT_TRUE(ResolveSpec(spec).ok()) << advice;
          spec.mutable_resources()->set_min_slots(groups * sharing);
          spec.mutable_resources()->set_max_slots(groups * sharing);
        }
        if (ranks == std::string::npos) continue;
        spec.mutable_parallel()->set_logical_ranks(std::atoi(advice.c_str() + ranks + 15));
        EXPECT_TRUE(ResolveSpec(spec).ok()) << advice;
      }
    }
  }
}

TEST(AdviseOnLogicalRanks, SpeaksWhereSlotsWouldWait) {
  v1::JobSpec spec = Cut(GptSpec(), 8, 48);
  EXPECT_EQ(AdviseOnLogicalRanks(spec), "");
  spec.mutable_resources()->set_max_slots(8);
  EXPECT_EQ(AdviseOnLogicalRanks(spec), "");
  spec.mutable_resources()->set_max_slots(6);
  EXPECT_EQ(AdviseOnLogicalRanks(spec),
            "8 logical ranks on 6 slots: one hosts 2 of them, and the others wait for it. 4 slots "
            "would be as fast. parallel.logical_ranks: 12 would keep all busy; it is another job, "
            "whose last digits differ.");
  spec.mutable_training()->set_batch_size(8);
  EXPECT_THAT(AdviseOnLogicalRanks(spec), ::testing::EndsWith("4 slots would be as fast."));
  spec.mutable_training()->set_batch_size(48);
  spec.mutable_training()->set_micro_batch_size(6);
  EXPECT_THAT(AdviseOnLogicalRanks(spec), ::testing::EndsWith("4 slots would be as fast."))
      << "twelve would leave four samples each";
}

}  // namespace
}  // namespace trainyard::plan
