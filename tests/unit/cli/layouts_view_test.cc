// The table of `trainyard plan --layouts`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/cli/job_view.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::PlanLayoutsResponse TwoLayouts() {
  v1::PlanLayoutsResponse plan;
  for (const int slots : {2, 3}) {
    v1::LayoutPlan& layout = *plan.add_layouts();
    layout.set_slots(slots);
    layout.set_logical_ranks_per_slot(4);
    layout.set_busy_share(0.5);
    layout.set_bytes_per_slot(1 << 20);
  }
  return plan;
}

TEST(RenderLayouts, HasNoColumnForSharedShardsWhereNoneAre) {
  EXPECT_EQ(RenderLayouts({}, TwoLayouts()),
            "SLOTS  LOGICAL RANKS EACH  BUSY  MEMORY PER SLOT  SENT PER STEP\n"
            "    2                   4   50%         1.00 MiB            0 B\n"
            "    3                   4   50%         1.00 MiB            0 B\n");
}

TEST(RenderLayouts, SaysHowManyRanksShareShards) {
  v1::PlanLayoutsResponse plan = TwoLayouts();
  plan.mutable_layouts(0)->mutable_layout()->set_tensor(2);
  plan.mutable_layouts(1)->mutable_layout()->set_tensor(1);
  EXPECT_THAT(
      RenderLayouts({}, plan),
      StartsWith("SLOTS  LAYOUT.TENSOR  LOGICAL RANKS EACH  BUSY  MEMORY PER SLOT  SENT PER STEP\n"
                 "    2              2                   4   50% "));
  plan.mutable_layouts(0)->mutable_layout()->set_sequence(true);
  EXPECT_THAT(RenderLayouts({}, plan), HasSubstr("LAYOUT.SEQUENCE"));
  EXPECT_THAT(RenderLayouts({}, plan), HasSubstr("\n    2              2             true "));
  plan.mutable_layouts(1)->mutable_layout()->set_chunks(4);
  EXPECT_THAT(RenderLayouts({}, plan), HasSubstr("LAYOUT.TENSOR  LAYOUT.CHUNKS  LAYOUT.SEQUENCE"));
  plan.mutable_layouts(0)->set_refused("no");
  EXPECT_THAT(RenderLayouts({}, plan),
              HasSubstr("\n2 slots, parallel.layout.tensor 2, parallel.layout.sequence: no\n"));
  plan.mutable_layouts(0)->clear_layout();
  EXPECT_THAT(RenderLayouts({}, plan), HasSubstr("\n2 slots: no\n"));
}

}  // namespace
}  // namespace trainyard::cli
