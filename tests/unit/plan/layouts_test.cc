#include "executor/plan/layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

bool Never() { return false; }

v1::JobSpec Cut(v1::JobSpec spec, int logical_ranks, int64_t batch_size) {
  spec.mutable_parallel()->set_logical_ranks(logical_ranks);
  spec.mutable_training()->set_batch_size(batch_size);
  spec.mutable_training()->set_micro_batch_size(1);
  return ResolveSpec(spec).value();
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
  const auto layouts = PlanLayouts(spec, facts, {1, 3, 8}, {}, Never);
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
    const auto layouts = PlanLayouts(spec, facts, {1, 2, 4, 8}, rates, Never).value();
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

TEST(Layouts, AreThoseThatWerePlannedInTime) {
  int asked = 0;
  const auto layouts = PlanLayouts(Cut(GptSpec(), 8, 8), TokenFacts(65), {1, 2, 4, 8}, {},
                                   [&] { return ++asked > 2; });
  EXPECT_THAT(layouts.value(), SizeIs(2));
}

TEST(Layouts, OfWhichOneDoesNotFitTellsTheOthers) {
  v1::JobSpec spec = Cut(CharGptSpec(), 8, 64);
  const DataFacts facts = TokenFacts(65);
  // The links of eight ranks take more than the budget leaves.
  const int64_t alone = (*PlanLayouts(spec, facts, {1}, {}, Never))[0].bytes_per_slot();
  spec.mutable_training()->mutable_recompute()->set_slot_bytes(alone);
  const auto layouts = PlanLayouts(spec, facts, {1, 8, 2}, {}, Never);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  ASSERT_THAT(*layouts, SizeIs(3));
  EXPECT_EQ((*layouts)[0].bytes_per_slot(), alone);
  EXPECT_THAT((*layouts)[1].refused(), HasSubstr("spec.training.recompute.slot_bytes"));
  EXPECT_EQ((*layouts)[1].slots(), 8);
  EXPECT_EQ((*layouts)[2].slots(), 2);
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
