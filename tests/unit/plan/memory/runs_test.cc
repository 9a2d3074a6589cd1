// Tensors that lie side by side, and are needed twice.

#include <gtest/gtest.h>

#include "executor/plan/memory/memory.h"

namespace trainyard::plan {
namespace {

constexpr int64_t kElements = 256;
constexpr int64_t kBytes = 4 * kElements;

// What `runs`, of a tensor each, take together; `offsets` are where they lie.
int64_t Packed(std::vector<TensorRun> runs, std::vector<int64_t>& offsets) {
  std::vector<Tensor> tensors(runs.size(), {.name = "a tensor", .dims = {kElements}});
  for (size_t i = 0; i < runs.size(); ++i) runs[i].tensors = {static_cast<TensorId>(i)};
  offsets.assign(runs.size(), -1);
  return PackActivations(tensors, {}, {}, offsets, {}, runs);
}

TEST(Runs, LeaveTheirMemoryBetweenTheRangesThatNeedIt) {
  std::vector<int64_t> offsets;
  const TensorRun twice = {.live = {0, 2}, .again = {7, 9}};
  EXPECT_EQ(Packed({twice, {.live = {3, 6}}}, offsets), kBytes);
  EXPECT_EQ(Packed({twice, {.live = {3, 4}, .again = {10, 12}}}, offsets), kBytes);
}

TEST(Runs, ShareNothingWhileBothAreNeeded) {
  std::vector<int64_t> offsets;
  const TensorRun twice = {.live = {0, 2}, .again = {7, 9}};
  for (const TensorRun& other :
       {TensorRun{.live = {2, 4}}, TensorRun{.live = {5, 7}}, TensorRun{.live = {0, 9}},
        TensorRun{.live = {3, 4}, .again = {9, 12}}, TensorRun{.live = {3, 4}, .again = {5, 8}},
        TensorRun{.live = {-1, 0}, .again = {5, 6}}}) {
    EXPECT_EQ(Packed({twice, other}, offsets), 2 * kBytes) << other.live.first;
    EXPECT_EQ(Packed({other, twice}, offsets), 2 * kBytes) << other.live.first;
    EXPECT_NE(offsets[0], offsets[1]);
  }
}

}  // namespace
}  // namespace trainyard::plan
