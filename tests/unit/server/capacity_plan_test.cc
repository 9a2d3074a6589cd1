#include "server/fleet/provision/capacity_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kGiB = int64_t{1} << 30;

absl::Time At(int seconds) { return absl::FromUnixSeconds(1000 + seconds); }

class CapacityPlanTest : public ::testing::Test {
 protected:
  CapacityPlanTest() {
    pools_ = {{.name = "a",
               .max = 4,
               .idle_ttl = absl::Seconds(60),
               .device = "CPU",
               .slots = 2,
               .bytes = 8 * kGiB}};
    view_.now = At(0);
  }

  void Wait(int jobs, int slots, const std::string& device = "", int64_t bytes = kGiB) {
    view_.waiting.push_back(
        {.demand = {.count = slots, .device = device, .bytes = bytes}, .jobs = jobs});
  }

  // With `busy` of its slots taken; of the request "a-0-I" if it has that name.
  CapacityView::Node& Node(const std::string& name, int slots, int busy,
                           const std::string& arithmetic = "x") {
    CapacityView::Node& node = view_.nodes.emplace_back();
    node.name = name;
    node.takes_work = true;
    node.holds = busy > 0;
    for (int i = 0; i < slots; ++i) {
      node.slots.push_back(
          {.device = "CPU", .arithmetic = arithmetic, .bytes = 8 * kGiB, .free = i >= busy});
    }
    return node;
  }

  void Request(const std::string& node, NodeRequestState state, const std::string& pool = "a") {
    requests_.push_back({.node = node, .pool = pool, .state = state, .create_time = At(-100)});
  }

  CapacityPlan Plan() {
    LearnArithmetic(pools_, view_, requests_, states_);
    CapacityPlan plan = PlanCapacity(pools_, states_, view_, requests_, idle_);
    idle_ = plan.idle_since;
    return plan;
  }

  int Asked(const std::string& pool = "a") {
    int nodes = 0;
    for (const CapacityAsk& ask : Plan().asks) nodes += ask.pool == pool ? ask.nodes : 0;
    return nodes;
  }

  std::vector<Pool> pools_;
  std::map<std::string, PoolState> states_;
  CapacityView view_;
  std::vector<NodeRequest> requests_;
  std::map<std::string, absl::Time> idle_;
};

TEST_F(CapacityPlanTest, NothingIsAskedForNobody) {
  EXPECT_THAT(Plan().asks, IsEmpty());
  pools_[0].min = 3;
  EXPECT_EQ(Asked(), 3);
}

TEST_F(CapacityPlanTest, SoManyNodesAsTheWaitingSlotsNeed) {
  Wait(3, 1);
  const CapacityPlan plan = Plan();
  ASSERT_EQ(plan.asks.size(), 1u);
  EXPECT_EQ(plan.asks[0].nodes, 2);
  EXPECT_EQ(plan.asks[0].why, "2 jobs, each of which needs 1 slot of 1.0 GiB")
      << "the third runs on what the first leaves";
  Wait(1, 3);
  EXPECT_EQ(Asked(), 3) << "a gang takes what is left, and goes over nodes";
}

TEST_F(CapacityPlanTest, NeverMoreThanThePoolHasAndAllOrNothingForAGang) {
  Wait(100, 1);
  EXPECT_EQ(Asked(), 4);
  view_.waiting.clear();
  Wait(1, 9);
  EXPECT_EQ(Asked(), 0) << "8 slots are no gang of 9";
  Wait(1, 8);
  EXPECT_EQ(Asked(), 4) << "who can never have enough does not stop those behind";
}

TEST_F(CapacityPlanTest, WhatIsFreeOrComingIsNotAskedForAgain) {
  Wait(4, 1);
  Node("n1", 2, 1);
  EXPECT_EQ(Asked(), 2);
  Request("a-0-1", NodeRequestState::kWanted);
  EXPECT_EQ(Asked(), 1);
  Request("a-0-2", NodeRequestState::kAsked);
  EXPECT_EQ(Asked(), 0);
  requests_[0].state = NodeRequestState::kReleasing;
  EXPECT_EQ(Asked(), 1) << "one that is given up comes no more";
  requests_[1].state = NodeRequestState::kEnded;
  EXPECT_EQ(Asked(), 2);
}

TEST_F(CapacityPlanTest, NodesThatAreThereOrLeaveCountForTheMost) {
  Wait(100, 1);
  Request("a-0-1", NodeRequestState::kAsked);
  Request("a-0-2", NodeRequestState::kReleasing);
  Request("a-0-3", NodeRequestState::kEnded);
  Node("a-0-1", 2, 2);
  EXPECT_EQ(Asked(), 2);
}

TEST_F(CapacityPlanTest, APoolThatDoesNotServeIsNotAsked) {
  Wait(1, 1, "CUDA");
  Wait(1, 1, "CPU", 9 * kGiB);
  EXPECT_EQ(Asked(), 0);
  pools_.push_back({.name = "b", .max = 1, .device = "CUDA", .slots = 8, .bytes = 80 * kGiB});
  EXPECT_EQ(Asked("b"), 1);
}

TEST_F(CapacityPlanTest, APoolThatFailedIsAskedLaterAndThenAnotherServes) {
  Wait(1, 1);
  states_["a"].not_before = At(1);
  EXPECT_EQ(Asked(), 0);
  pools_.push_back({.name = "b", .max = 1, .device = "CPU", .slots = 8, .bytes = 80 * kGiB});
  EXPECT_EQ(Asked("b"), 1);
  view_.now = At(2);
  EXPECT_EQ(Asked("a"), 1);
}

TEST_F(CapacityPlanTest, WhatAPoolRefusedIsNotWaitedForWhileAnotherServes) {
  Wait(1, 1);
  states_["a"].not_before = At(1);
  Request("a-0-1", NodeRequestState::kWanted);
  pools_.push_back({.name = "b", .max = 1, .device = "CPU", .slots = 8, .bytes = 80 * kGiB});
  EXPECT_EQ(Asked("b"), 1);
  requests_[0].state = NodeRequestState::kAsked;
  EXPECT_EQ(Asked("b"), 0) << "what it has taken comes";
}

TEST_F(CapacityPlanTest, WhoWaitsForFreeSlotsKeepsThem) {
  Node("n1", 4, 2);
  pools_[0].max = 1;
  Wait(1, 4);
  states_["a"].arithmetic = "x";
  EXPECT_EQ(Asked(), 1) << "with the two that are free they are enough";
  Wait(1, 1);
  EXPECT_EQ(Asked(), 1) << "they are the gang's; who comes next gets none";
  view_.waiting[0].demand.count = 5;
  EXPECT_EQ(Asked(), 0) << "a gang that can never be held keeps nothing from who comes next";
  Node("n2", 4, 4);
  view_.waiting[0].demand.count = 6;
  EXPECT_EQ(Asked(), 0) << "it waits for busy slots, and would keep those of a new node, too";
  pools_[0].min = 1;
  EXPECT_EQ(Asked(), 1) << "those that are kept are kept all the same";
}

TEST_F(CapacityPlanTest, AGangGetsSlotsThatComputeAlike) {
  Node("n1", 2, 0, "x");
  Wait(1, 4);
  EXPECT_EQ(Asked(), 2) << "how a node of the pool computes is not known: it has to give all";
  Request("a-0-9", NodeRequestState::kAsked);
  Node("a-0-9", 2, 2, "x");
  EXPECT_EQ(Asked(), 1) << "it computes as n1 does";
  view_.waiting[0].demand.arithmetic = "y";
  EXPECT_EQ(Asked(), 0) << "who is bound to another arithmetic finds it nowhere";
  view_.waiting[0].demand.arithmetic.clear();
  view_.nodes[1].slots[0].arithmetic = "y";
  view_.nodes[1].slots[1].arithmetic = "y";
  EXPECT_EQ(Asked(), 2);
  view_.waiting[0].demand.mixed = true;
  EXPECT_EQ(Asked(), 1);
}

TEST_F(CapacityPlanTest, APoolComputesAsItsSlotsDoAndNotAsOthersOfItsNodes) {
  Request("a-0-1", NodeRequestState::kAsked);
  CapacityView::Node& node = Node("a-0-1", 2, 2, "y");
  node.slots.insert(node.slots.begin(), {.device = "CUDA", .arithmetic = "z"});
  Plan();
  EXPECT_EQ(states_["a"].arithmetic, "y");
}

TEST_F(CapacityPlanTest, WhatNobodyNeedsIsGivenBackAfterItsTime) {
  Request("a-0-1", NodeRequestState::kAsked);
  Request("a-0-2", NodeRequestState::kAsked);
  Request("a-0-3", NodeRequestState::kAsked);  // comes
  Node("a-0-1", 2, 0);
  Node("a-0-2", 2, 1);
  EXPECT_THAT(Plan().releases, IsEmpty());
  view_.now = At(59);
  EXPECT_THAT(Plan().releases, IsEmpty());
  view_.now = At(60);
  EXPECT_THAT(Plan().releases, ElementsAre("a-0-1", "a-0-3"));
  pools_[0].min = 2;
  EXPECT_THAT(Plan().releases, ElementsAre("a-0-1"));
  requests_[0].state = NodeRequestState::kReleasing;
  EXPECT_THAT(Plan().releases, IsEmpty()) << "one that goes is none that is kept";
  EXPECT_EQ(Asked(), 0);
  pools_[0].min = 3;
  EXPECT_EQ(Asked(), 1);
  pools_[0].max = 3;
  EXPECT_EQ(Asked(), 0) << "the one that goes has its place until it is gone";
}

TEST_F(CapacityPlanTest, ANodeWhoseLeaseIsOverIsGivenBackWithWhatWasLostThere) {
  Request("a-0-1", NodeRequestState::kAsked);
  CapacityView::Node& node = Node("a-0-1", 2, 2);
  node.takes_work = false;
  node.away = true;
  pools_[0].min = 1;
  EXPECT_EQ(Asked(), 1) << "another one is kept";
  view_.now = At(100);
  EXPECT_THAT(Plan().releases, ElementsAre("a-0-1"));
}

TEST_F(CapacityPlanTest, WhyIsShortHoweverManyKindsOfJobsWait) {
  for (int i = 0; i < 100; ++i) Wait(1, 1, "", kGiB + i);
  pools_[0].max = 100;
  const CapacityPlan plan = Plan();
  ASSERT_EQ(plan.asks.size(), 1u);
  EXPECT_EQ(plan.asks[0].nodes, 50);
  EXPECT_LT(plan.asks[0].why.size(), 200u);
  EXPECT_NE(plan.asks[0].why.find("and others"), std::string::npos);
}

TEST_F(CapacityPlanTest, WhatAWaitingGangNeedsIsKeptForIt) {
  Request("a-0-1", NodeRequestState::kAsked);
  Request("a-0-2", NodeRequestState::kAsked);  // comes, perhaps in an hour
  Node("a-0-1", 2, 0);
  Wait(1, 4);
  states_["a"].arithmetic = "x";
  Plan();
  view_.now = At(3600);
  EXPECT_THAT(Plan().releases, IsEmpty());
  view_.waiting.clear();  // it was cancelled
  EXPECT_THAT(Plan().releases, IsEmpty());
  view_.now = At(3660);
  EXPECT_THAT(Plan().releases, ElementsAre("a-0-1", "a-0-2"));
}

TEST_F(CapacityPlanTest, NodesThatTakeNoWorkAreGivenBackOnceTheyAreEmpty) {
  Request("a-0-1", NodeRequestState::kAsked);
  Request("a-0-2", NodeRequestState::kAsked);
  CapacityView::Node& drained = Node("a-0-1", 2, 1);
  drained.takes_work = false;
  CapacityView::Node& away = Node("a-0-2", 2, 0);
  away.takes_work = false;
  away.away = true;
  Plan();
  view_.now = At(100);
  EXPECT_THAT(Plan().releases, ElementsAre("a-0-2"));
}

TEST_F(CapacityPlanTest, NodesOfAPoolThatIsNoMoreAreGivenBack) {
  Request("old-0-1", NodeRequestState::kAsked, "old");
  Request("old-0-2", NodeRequestState::kAsked, "old");
  Request("old-0-3", NodeRequestState::kEnded, "old");
  Node("old-0-2", 2, 1);
  EXPECT_THAT(Plan().releases, ElementsAre("old-0-1"));
}

TEST_F(CapacityPlanTest, ALongQueueCostsNoMoreThanTheSlotsThatServeIt) {
  pools_[0].max = 10;
  for (int i = 0; i < 200; ++i) Wait(1000000, 1 + i);
  EXPECT_EQ(Asked(), 10);
}

}  // namespace
}  // namespace trainyard
