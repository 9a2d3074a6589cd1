#include "server/fleet/provision/reconcile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using State = Allocation::State;

class ReconcileTest : public ::testing::Test {
 protected:
  NodeRequest& Request(const std::string& node, NodeRequestState state) {
    requests_.push_back({.node = node,
                         .pool = "a",
                         .state = state,
                         .create_time = absl::FromUnixSeconds(10),
                         .change_time = absl::FromUnixSeconds(20)});
    return requests_.back();
  }
  void Has(const std::string& node, const std::string& id, State state, bool proven = false,
           absl::Duration ran = absl::ZeroDuration()) {
    allocations_.push_back({.node = node,
                            .id = id,
                            .words = "says " + id,
                            .state = state,
                            .ran = ran,
                            .proven_gone = proven});
  }
  Reconciled Do() { return Reconcile(pools_, requests_, allocations_, {registered_, here_}); }

  std::vector<Pool> pools_ = {{.name = "a", .max = 4, .boot_timeout = absl::Seconds(60)}};
  std::vector<NodeRequest> requests_;
  std::vector<Allocation> allocations_;
  std::set<std::string> registered_, here_;
};

TEST_F(ReconcileTest, WhatTheEngineHasIsAsked) {
  Request("a-0-1", NodeRequestState::kWanted);
  Request("a-0-2", NodeRequestState::kWanted);
  Has("a-0-1", "7_1", State::kWaits);
  const Reconciled found = Do();
  ASSERT_EQ(found.changed.size(), 1u);
  EXPECT_EQ(found.changed[0].node, "a-0-1");
  EXPECT_EQ(found.changed[0].state, NodeRequestState::kAsked);
  EXPECT_EQ(found.changed[0].engine_id, "7_1");
  EXPECT_EQ(found.changed[0].engine_words, "says 7_1");
  EXPECT_THAT(found.releases, IsEmpty());
  EXPECT_THAT(WantedByAsk(requests_, "a"), ElementsAre(Pair("a-0", ElementsAre(1, 2))));
}

TEST_F(ReconcileTest, WhatIsAsItWasIsNotWritten) {
  NodeRequest& request = Request("a-0-1", NodeRequestState::kAsked);
  request.engine_id = "7_1";
  request.engine_words = "says 7_1";
  Has("a-0-1", "7_1", State::kRuns);
  EXPECT_THAT(Do().changed, IsEmpty());
}

TEST_F(ReconcileTest, OfTwoUnderOneNameTheFirstStays) {
  Request("a-0-1", NodeRequestState::kWanted);
  Has("a-0-1", "6_1", State::kOver, true);
  Has("a-0-1", "7_1", State::kWaits);
  Has("a-0-1", "8_1", State::kRuns);
  const Reconciled found = Do();
  EXPECT_THAT(found.releases, ElementsAre("8_1"));
  ASSERT_EQ(found.changed.size(), 1u);
  EXPECT_EQ(found.changed[0].engine_id, "7_1");
}

TEST_F(ReconcileTest, WhatNobodyWantsIsReleased) {
  Request("a-0-1", NodeRequestState::kReleasing);
  Request("a-0-2", NodeRequestState::kEnded);
  Has("a-0-1", "7_1", State::kRuns);
  Has("a-0-2", "7_2", State::kRuns);
  Has("a-9-1", "8_1", State::kWaits);
  Has("a-9-2", "8_2", State::kOver);
  EXPECT_THAT(Do().releases, UnorderedElementsAre("7_1", "7_2", "8_1"));
}

TEST_F(ReconcileTest, AnEndIsProofOnlyIfTheEngineVouchesForAllOfThem) {
  Request("a-0-1", NodeRequestState::kAsked);
  Request("a-0-2", NodeRequestState::kAsked);
  Request("a-0-3", NodeRequestState::kAsked);
  registered_ = {"a-0-1", "a-0-2", "a-0-3"};
  Has("a-0-1", "7_1", State::kOver, true, absl::Hours(1));
  Has("a-0-2", "7_2", State::kOver, false, absl::Hours(1));
  Has("a-0-2", "8_2", State::kOver, true, absl::Hours(1));
  const Reconciled found = Do();
  ASSERT_EQ(found.changed.size(), 3u);
  EXPECT_TRUE(found.changed[0].proven_gone);
  EXPECT_FALSE(found.changed[1].proven_gone);
  EXPECT_FALSE(found.changed[2].proven_gone);
  EXPECT_THAT(found.changed[2].engine_words, HasSubstr("has forgotten it"));
  for (const NodeRequest& one : found.changed) {
    EXPECT_EQ(one.state, NodeRequestState::kEnded);
    EXPECT_FALSE(one.failed) << "its agent was there";
  }
  EXPECT_THAT(found.failed_pools, IsEmpty());
}

TEST_F(ReconcileTest, ANodeThatDoesNotComeUpIsAFailureOfItsPool) {
  Request("a-0-1", NodeRequestState::kAsked);
  Has("a-0-1", "7_1", State::kOver, true);
  Reconciled found = Do();
  EXPECT_THAT(found.failed_pools, ElementsAre(Pair("a", "a-0-1: says 7_1 before its agent came")));
  ASSERT_EQ(found.changed.size(), 1u);
  EXPECT_TRUE(found.changed[0].failed);

  allocations_.clear();
  Has("a-0-1", "7_1", State::kWaits, false, absl::Hours(5));
  EXPECT_THAT(Do().failed_pools, IsEmpty()) << "it has not begun";
  allocations_.clear();
  Has("a-0-1", "7_1", State::kRuns, false, absl::Seconds(60));
  EXPECT_THAT(Do().failed_pools, IsEmpty());
  allocations_[0].ran = absl::Seconds(61);
  found = Do();
  EXPECT_EQ(found.failed_pools.size(), 1u);
  EXPECT_THAT(found.give_up, ElementsAre("a-0-1"));
  EXPECT_THAT(found.releases, IsEmpty()) << "once it is given up, if its agent has not come";
  EXPECT_EQ(found.changed[0].engine_words,
            "says 7_1 for 1m1s, and its agent did not come (boot_timeout)");
  registered_ = {"a-0-1"};
  EXPECT_THAT(Do().failed_pools, IsEmpty());
}

TEST_F(ReconcileTest, WhatTheEngineTookAndNeverShowsIsAFailure) {
  Request("a-0-1", NodeRequestState::kAsked).engine_id = "7_1";
  Request("a-0-2", NodeRequestState::kReleasing);
  const Reconciled found = Do();
  EXPECT_THAT(found.releases, ElementsAre("7_1"));
  ASSERT_EQ(found.changed.size(), 2u);
  EXPECT_TRUE(found.changed[0].failed);
  EXPECT_FALSE(found.changed[1].failed) << "it was given up before it came";
  EXPECT_EQ(found.failed_pools.count("a"), 1u) << "or it would be asked for again at once";
}

TEST_F(ReconcileTest, ANodeThatIsHereHasNotEndedWhateverTheEngineForgot) {
  Request("a-0-1", NodeRequestState::kAsked);
  registered_ = here_ = {"a-0-1"};
  EXPECT_THAT(Do().changed, IsEmpty());
  here_.clear();
  ASSERT_EQ(Do().changed.size(), 1u);
  EXPECT_EQ(Do().changed[0].state, NodeRequestState::kEnded);
  EXPECT_FALSE(Do().changed[0].proven_gone);
}

TEST_F(ReconcileTest, AnAllocationThatNobodyWillStartIsGivenUp) {
  Request("a-0-1", NodeRequestState::kAsked);
  Has("a-0-1", "7_1", State::kWaits);
  allocations_[0].stuck = true;
  const Reconciled found = Do();
  EXPECT_THAT(found.give_up, ElementsAre("a-0-1"));
  ASSERT_EQ(found.changed.size(), 1u);
  EXPECT_TRUE(found.changed[0].failed);
  EXPECT_THAT(found.failed_pools, ElementsAre(Pair("a", "a-0-1: says 7_1, and stays so")));
}

TEST_F(ReconcileTest, ANodeThatEndsAsItBeginsIsAFailureOfItsPool) {
  Request("a-0-1", NodeRequestState::kAsked);
  registered_ = {"a-0-1"};
  Has("a-0-1", "7_1", State::kOver, true, absl::Seconds(3));
  EXPECT_THAT(Do().failed_pools, ElementsAre(Pair("a", "a-0-1: says 7_1 after 3s")));
  allocations_[0].ran = absl::Minutes(3);
  EXPECT_THAT(Do().failed_pools, IsEmpty());
  allocations_[0].ran = absl::Seconds(3);
  requests_[0].state = NodeRequestState::kReleasing;
  EXPECT_THAT(Do().failed_pools, IsEmpty()) << "it was given back";
}

TEST_F(ReconcileTest, ANodeThatBringsLessThanItsPoolSaysIsAFailureOnce) {
  pools_[0].device = "CUDA";
  pools_[0].slots = 2;
  pools_[0].bytes = int64_t{80} << 30;
  Request("a-0-1", NodeRequestState::kAsked);
  Request("a-0-2", NodeRequestState::kAsked);  // not there yet
  CapacityView view;
  CapacityView::Node& node = view.nodes.emplace_back();
  node.name = "a-0-1";
  node.slots = {{.device = "CPU", .bytes = int64_t{99} << 30},
                {.device = "CUDA", .bytes = int64_t{80} << 30},
                {.device = "CUDA", .bytes = int64_t{77} << 30}};
  Reconciled found = FindLesser(pools_, requests_, view);
  ASSERT_EQ(found.changed.size(), 1u);
  EXPECT_TRUE(found.changed[0].failed);
  EXPECT_EQ(found.changed[0].state, NodeRequestState::kAsked) << "it may serve others";
  EXPECT_THAT(found.failed_pools["a"],
              HasSubstr("a-0-1: it brings 3 slots of 77.0 GiB, and --pools says 2 CUDA of 80.0"));
  requests_[0] = found.changed[0];
  EXPECT_THAT(FindLesser(pools_, requests_, view).failed_pools, IsEmpty());
  Has("a-0-1", "7_1", State::kRuns);
  found = Do();
  EXPECT_THAT(found.changed[0].engine_words, HasSubstr("it brings 3 slots"));
  node.slots[2].bytes = node.slots[1].bytes;
  requests_[0].failed = false;
  EXPECT_THAT(FindLesser(pools_, requests_, view).changed, IsEmpty());
}

TEST_F(ReconcileTest, UsersAreToldWhatIsOnItsWayAndWhatFailed) {
  const absl::Time now = absl::FromUnixSeconds(100);
  Request("a-0-1", NodeRequestState::kAsked).engine_words = "Slurm PENDING (Resources)";
  Request("a-0-2", NodeRequestState::kAsked).engine_words = "Slurm PENDING (Resources)";
  Request("a-0-3", NodeRequestState::kAsked);
  Request("a-0-4", NodeRequestState::kWanted);
  registered_ = {"a-0-3"};
  EXPECT_THAT(DescribeRequests(requests_, registered_, now),
              UnorderedElementsAre("2 nodes are asked of pool a: Slurm PENDING (Resources)",
                                   "1 node is asked of pool a: its engine has not answered yet"));
  requests_.clear();
  NodeRequest& failed = Request("a-0-5", NodeRequestState::kEnded);
  failed.failed = true;
  failed.engine_words = "Slurm FAILED (NonZeroExitCode)";
  EXPECT_THAT(DescribeRequests(requests_, registered_, now),
              ElementsAre(HasSubstr("the newest node of pool a, a-0-5, is not of use (1970-01-")));
  EXPECT_THAT(DescribeRequests(requests_, registered_, now + absl::Hours(1)), IsEmpty());
}

TEST(AskedNames, AreReadAsTheyAreWritten) {
  EXPECT_EQ(AskedNodeName("a-00ff", 12), "a-00ff-12");
  EXPECT_EQ(ParseAskedName("a-00ff-12").ask, "a-00ff");
  EXPECT_EQ(ParseAskedName("a-00ff-12").index, 12);
  for (const char* other : {"", "a", "-1", "a-", "a-x", "a-0", "a--1", "a-01", "a-+1"}) {
    const AskedName name = ParseAskedName(other);
    EXPECT_TRUE(name.index == 0 || std::string(other) == "a--1") << other;
  }
}

}  // namespace
}  // namespace trainyard
