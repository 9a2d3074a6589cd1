// Nodes that were asked of engines, on every store.

#include <gmock/gmock.h>

#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Provision : public StoreSuite {
 protected:
  void SetUp() override {
    StoreSuite::SetUp();
    epoch_ = Lead();
  }
  ProvisionStore& provision() { return backend_->stores().provision(); }
  void Add(const std::vector<std::string>& nodes) {
    std::vector<NodeRequest> requests;
    for (const std::string& node : nodes) {
      requests.push_back({.node = node, .pool = "a", .why = "a test"});
    }
    ASSERT_OK(provision().AddNodeRequests(epoch_, requests));
  }
  std::vector<NodeRequest> List() {
    return provision().ListNodeRequests(WhichRequests::kAll)->requests;
  }
  void End(const std::string& node) {
    ASSERT_OK(provision().UpdateNodeRequests(
        epoch_, {{.node = node, .state = NodeRequestState::kEnded, .proven_gone = true}}));
  }

  void ExpectDrainingAlone(const std::string& name) {
    const auto nodes = fleet().ListNodes();
    ASSERT_OK(nodes.status());
    for (const NodeRecord& node : *nodes) EXPECT_EQ(node.draining, node.name == name) << node.name;
  }

  int64_t epoch_ = 0;
};

TEST_P(Provision, RequestsAreKeptAsTheyWereToldLast) {
  Add({"a-0-2", "a-0-1"});
  Add({"a-0-1"});
  std::vector<NodeRequest> all = List();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].node, "a-0-1");
  EXPECT_EQ(all[0].pool, "a");
  EXPECT_EQ(all[0].why, "a test");
  EXPECT_EQ(all[0].state, NodeRequestState::kWanted);
  EXPECT_EQ(all[0].create_time, all[0].change_time);
  ASSERT_OK(provision().UpdateNodeRequests(epoch_, {{.node = "a-0-1",
                                                     .state = NodeRequestState::kAsked,
                                                     .engine_id = "7_1",
                                                     .engine_words = "it \"waits\", {a}",
                                                     .failed = true},
                                                    {.node = "unknown"}}));
  all = List();
  EXPECT_EQ(all[0].state, NodeRequestState::kAsked);
  EXPECT_EQ(all[0].engine_id, "7_1");
  EXPECT_EQ(all[0].engine_words, "it \"waits\", {a}");
  EXPECT_TRUE(all[0].failed);
  EXPECT_FALSE(all[0].proven_gone);
  EXPECT_EQ(all[0].why, "a test");
  EXPECT_GE(all[0].change_time, all[0].create_time);
  End("a-0-1");
  ASSERT_OK(provision().UpdateNodeRequests(epoch_,
                                           {{.node = "a-0-1", .state = NodeRequestState::kAsked}}));
  EXPECT_EQ(List()[0].state, NodeRequestState::kEnded) << "an end is an end";
  EXPECT_TRUE(List()[0].proven_gone);
  const std::string yard = provision().ListNodeRequests(WhichRequests::kAll)->yard_id;
  EXPECT_FALSE(yard.empty());
  EXPECT_EQ(provision().ListNodeRequests(WhichRequests::kAll)->yard_id, yard);
}

TEST_P(Provision, AnOldLeaderWritesNothing) {
  Add({"a-0-1"});
  ASSERT_OK(scheduler().StandDown("leader"));
  const int64_t old = epoch_;
  Lead("other");
  const auto aborted = absl::StatusCode::kAborted;
  EXPECT_EQ(provision().AddNodeRequests(old, {{.node = "a-0-2", .pool = "a"}}).code(), aborted);
  EXPECT_EQ(provision()
                .UpdateNodeRequests(old, {{.node = "a-0-1", .state = NodeRequestState::kEnded}})
                .code(),
            aborted);
  EXPECT_EQ(provision().ReleaseIdleNodes(old, {"a-0-1"}).status().code(), aborted);
  EXPECT_EQ(provision().ForgetEndedNodes(old).status().code(), aborted);
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].state, NodeRequestState::kWanted);
}

TEST_P(Provision, OnlyNodesThatHoldNothingAreGivenUp) {
  Add({"a-0-1", "a-0-2", "a-0-3", "a-0-4"});
  Register("a-0-1");
  Register("a-0-2");
  End("a-0-4");
  EXPECT_EQ(provision().ListNodeRequests(WhichRequests::kLive)->requests.size(), 3u);
  Submit("j1");
  Run("j1", {"a-0-1"});
  const auto released =
      provision().ReleaseIdleNodes(epoch_, {"a-0-1", "a-0-2", "a-0-3", "a-0-4", "unknown"});
  ASSERT_OK(released.status());
  EXPECT_THAT(*released, ::testing::UnorderedElementsAre("a-0-2", "a-0-3"));
  ExpectDrainingAlone("a-0-2");
  // A node that registers anew is given up all the same, and so is one that comes only now.
  Register("a-0-2");
  ExpectDrainingAlone("a-0-2");
  Register("a-0-3");
  const auto nodes = fleet().ListNodes();
  EXPECT_EQ(std::count_if(nodes->begin(), nodes->end(), [](const auto& n) { return n.draining; }),
            2);
}

TEST_P(Provision, NodesAreForgottenOnceNothingIsLeftOfThem) {
  Add({"a-0-1", "a-0-2", "a-0-3"});
  for (const char* node : {"a-0-1", "a-0-2", "a-0-3", "n"}) {
    RegisterAs(AgentIdentity(node, "agent", "boot-1:8:42:"));
  }
  ASSERT_EQ(Place(Submit("j1"), {"a-0-2"}), 1);
  End("a-0-1");
  End("a-0-2");
  EXPECT_EQ(*provision().ForgetEndedNodes(epoch_), 0) << "their leases hold";
  Decisions lost;
  for (const char* node : {"a-0-1", "a-0-2", "a-0-3", "n"}) {
    lost.lost_nodes.push_back(Stands(node));
  }
  ASSERT_OK(scheduler().Apply(epoch_, lost).status());
  EXPECT_EQ(*provision().ForgetEndedNodes(epoch_), 1);
  std::vector<std::string> left;
  const auto nodes = fleet().ListNodes();
  for (const NodeRecord& node : *nodes) left.push_back(node.name);
  EXPECT_THAT(left, ElementsAre("a-0-2", "a-0-3", "n"));
  ASSERT_OK(fleet().ConfirmEmpty("a-0-2").status());
  EXPECT_EQ(*provision().ForgetEndedNodes(epoch_), 1);
  EXPECT_EQ(List().size(), 3u) << "what became of a request is told for an hour";
}

TEST_P(Provision, ANameThatWasAskedForIsJoinedByItsPoolAlone) {
  NodeKeyStore& keys = backend_->stores().node_keys();
  for (const char* pool : {"a", "b"}) {
    ASSERT_OK(keys.AddJoinToken({.id = pool, .sha256 = pool, .pool = pool, .most_joins = 9},
                                absl::Hours(1))
                  .status());
  }
  const auto join = [&](const std::string& pool, const std::string& node) {
    return keys.Join({.token_sha256 = pool,
                      .fingerprint = "key of " + node,
                      .node = node,
                      .node_uid = "uid of " + node});
  };
  Add({"a-0-1", "a-0-2"});
  End("a-0-2");
  EXPECT_EQ(join("b", "a-0-1").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(join("a", "a-0-2").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_OK(join("b", "n1").status()) << "a machine that nobody asked an engine for";
  ASSERT_OK(join("a", "a-0-1").status());

  // Its key goes with the node.
  ASSERT_OK(keys.FindNodeKey("key of a-0-1").status());
  NodeRecord node{.name = "a-0-1",
                  .uid = "uid of a-0-1",
                  .instance = "b:d:1:m",
                  .key_fingerprint = "key of a-0-1",
                  .incarnation = "i",
                  .address = "h"};
  ASSERT_OK(fleet().RegisterNode(node, absl::Seconds(10)).status());
  End("a-0-1");
  ASSERT_OK(scheduler().Apply(epoch_, {.lost_nodes = {Stands("a-0-1")}}).status());
  EXPECT_EQ(*provision().ForgetEndedNodes(epoch_), 1);
  EXPECT_EQ(keys.FindNodeKey("key of a-0-1").status().code(), absl::StatusCode::kNotFound);
  EXPECT_OK(keys.FindNodeKey("key of n1").status());
}

INSTANTIATE_TEST_SUITE_P(Stores, Provision, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
