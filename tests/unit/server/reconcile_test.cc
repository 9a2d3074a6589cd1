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
  Reconciled Do() { return Reconcile(pools_, requests_, allocations_, registered_); }

  std::vector<Pool> pools_ = {{.name = "a", .max = 4, .boot_timeout = absl::Seconds(60)}};
  std::vector<NodeRequest> requests_;
  std::vector<Allocation> allocations_;
  std::set<std::string> registered_;
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
  Has("a-0-1", "7_1", State::kOver, true);
  Has("a-0-2", "7_2", State::kOver, false);
  Has("a-0-2", "8_2", State::kOver, true);
  const Reconciled found = Do();
  ASSERT_EQ(found.changed.size(), 3u);
  EXPECT_TRUE(found.changed[0].proven_gone);
  EXPECT_FALSE(found.changed[1].proven_gone);
  EXPECT_FALSE(found.changed[2].proven_gone);
  EXPECT_THAT(found.changed[2].engine_words, HasSubstr("knows it no more"));
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
  EXPECT_THAT(found.releases, ElementsAre("7_1"));
  EXPECT_EQ(found.changed[0].state, NodeRequestState::kReleasing);
  registered_ = {"a-0-1"};
  EXPECT_THAT(Do().failed_pools, IsEmpty());
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
  EXPECT_THAT(
      DescribeRequests(requests_, registered_, now),
      ElementsAre(HasSubstr("the newest node of pool a, a-0-5, did not come up (1970-01-")));
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
