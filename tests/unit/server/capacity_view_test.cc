// What a pass tells those who get nodes, of projects that may hold only so many slots.

#include "server/scheduler/capacity_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "2x1": two jobs of one slot each.
std::vector<std::string> WaitingAfterAPass(const Snapshots& s) {
  SchedulerState state;
  SnapshotChanges changes{.now = TestNow(),
                          .whole = true,
                          .jobs = s.snapshot.jobs,
                          .attempts = s.snapshot.attempts,
                          .nodes = s.snapshot.nodes};
  for (const auto& [project, limit] : s.snapshot.slot_limits) {
    changes.slot_limits.emplace_back(project, limit);
  }
  state.Fold(std::move(changes));
  const Pass pass = state.Plan(PlannerOptions{});
  std::vector<std::string> waiting;
  for (const CapacityView::Waiting& one : CapacityOf(state, pass, 1).waiting) {
    waiting.push_back(std::to_string(one.jobs) + "x" + std::to_string(one.demand.count));
  }
  return waiting;
}

TEST(CapacityView, NoMoreJobsWaitThanTheirLimitLetsStart) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1}).Running({.id = "r", .project = "vision"}, "n", {0});
  s.snapshot.slot_limits["vision"] = 3;
  for (const char* id : {"a", "b", "c", "d"}) s.Queued({.id = id, .project = "vision"});
  EXPECT_THAT(WaitingAfterAPass(s), ElementsAre("2x1"));
}

TEST(CapacityView, NobodyWaitsBehindOneThatWaitsForTheLimit) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 12}).Running({.id = "r", .project = "vision"}, "n", {0, 1, 2, 3});
  s.snapshot.slot_limits["vision"] = 8;
  s.Queued({.id = "a", .slots = 8, .age_seconds = 9, .project = "vision"})
      .Queued({.id = "b", .slots = 4, .device = "CUDA", .project = "vision"});
  EXPECT_THAT(WaitingAfterAPass(s), IsEmpty()) << "a node for it would be idle";
  s.Node({.name = "g", .cuda = 4}).Running({.id = "busy"}, "g", {0, 1, 2, 3});
  EXPECT_THAT(WaitingAfterAPass(s), IsEmpty()) << "nor if there are some that are busy";
}

// Or jobs that present nodes hold would use the limit up for ever.
TEST(CapacityView, OneThatNoPresentNodeHoldsIsAskedForWhileOthersUseTheLimitUp) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 4}).Running({.id = "r", .project = "vision"}, "n", {0});
  s.snapshot.slot_limits["vision"] = 8;
  s.Queued({.id = "gang", .slots = 8, .device = "CUDA", .project = "vision"});
  EXPECT_THAT(WaitingAfterAPass(s), ElementsAre("1x8"));
  s.snapshot.slot_limits["vision"] = 7;
  EXPECT_THAT(WaitingAfterAPass(s), IsEmpty()) << "it never will";
}

}  // namespace
}  // namespace trainyard
