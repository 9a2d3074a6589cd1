#include "executor/engine/step_parts.h"

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

TEST(StepParts, OneLogicalRankHasItsMicroBatchesBetweenBeginAndEnd) {
  EXPECT_EQ(StepParts(1, {0, 1}, 1),
            (std::vector<StepPart>{
                {.begins_step = true, .begins_logical_rank = true, .ends_step = true}}));
  EXPECT_EQ(StepParts(1, {0, 1}, 3),
            (std::vector<StepPart>{
                {.begins_step = true, .begins_logical_rank = true}, {}, {.ends_step = true}}));
}

TEST(StepParts, EachLogicalRankAddsUpInAPlaceOfItsOwnUntilItsSiblingIsDone) {
  std::vector<int64_t> partials, folds;
  for (const StepPart& part : StepParts(8, {0, 8}, 2)) {
    partials.push_back(part.partial);
    folds.push_back(part.folds);
    EXPECT_LE(part.folds, part.partial);
  }
  EXPECT_EQ(partials, (std::vector<int64_t>{0, 0, 1, 1, 1, 1, 2, 2, 1, 1, 2, 2, 2, 2, 3, 3}));
  EXPECT_EQ(folds, (std::vector<int64_t>{0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3}));
}

TEST(StepParts, ARankThatHostsSomeLeavesTheEndOfTheStepToTheGang) {
  const std::vector<StepPart> parts = StepParts(8, {3, 6}, 1);  // 3; 4 and 5 are siblings
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[1].partial, 1);
  EXPECT_EQ(parts[2].partial, 2);
  EXPECT_EQ(parts[2].folds, 1);
  EXPECT_FALSE(parts[2].ends_step);
}

TEST(PartsAhead, AllRanksOfAGangEnqueueAWholeStepAheadOrNone) {
  for (const int64_t micro_batches : {1, 2, 3}) {
    for (int64_t ranks = 2; ranks <= 8; ++ranks) {
      int64_t whole = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t own = plan::HostedBy(8, ranks, rank).size() * micro_batches;
        const int64_t ahead = PartsAhead(8, ranks, micro_batches, own, 2);
        EXPECT_LE(ahead, 2);
        whole += ahead == own;
      }
      EXPECT_TRUE(whole == 0 || whole == ranks) << ranks << " ranks, " << whole;
    }
  }
  EXPECT_EQ(PartsAhead(1, 1, 2, 2, 2), 2);
  EXPECT_EQ(PartsAhead(1, 1, 8, 8, 2), 2);
}

}  // namespace
}  // namespace trainyard::engine
