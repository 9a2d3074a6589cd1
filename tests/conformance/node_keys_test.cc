// How machines come to be nodes, on every store.

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

class NodeKeys : public StoreSuite {
 protected:
  NodeKeyStore& keys() { return backend_->stores().node_keys(); }

  // The digest of a new token, for which it stands here.
  std::string AddToken(int joins = 1, absl::Duration valid_for = absl::Hours(1)) {
    const std::string name = absl::StrCat("t", ++tokens_);
    const auto added = keys().AddJoinToken({.id = name,
                                            .sha256 = name + " digest",
                                            .pool = "pool",
                                            .creator = "user:ann",
                                            .most_joins = joins},
                                           valid_for);
    EXPECT_OK(added.status());
    return name + " digest";
  }

  absl::StatusOr<NodeKey> Join(const std::string& token, const std::string& node,
                               const std::string& key = "") {
    return keys().Join({.token_sha256 = token,
                        .fingerprint = key.empty() ? node + " key" : key,
                        .node = node,
                        .node_uid = node + " uid"});
  }

  int JoinsOf(const std::string& id) {
    const auto tokens = keys().ListJoinTokens();
    EXPECT_OK(tokens.status());
    for (const JoinToken& token : *tokens) {
      if (token.id == id) return token.joins;
    }
    return -1;
  }

  int tokens_ = 0;
};

absl::StatusCode CodeOf(const absl::StatusOr<NodeKey>& key) { return key.status().code(); }

TEST_P(NodeKeys, ATokenLetsAsManyKeysInAsItIsForAndEachAgain) {
  const std::string token = AddToken(2);
  const auto first = Join(token, "n1");
  ASSERT_OK(first.status());
  EXPECT_EQ(first->node, "n1");
  EXPECT_EQ(first->node_uid, "n1 uid");
  EXPECT_EQ(first->pool, "pool");
  EXPECT_EQ(first->token_id, "t1");
  EXPECT_OK(Join(token, "n2").status());
  EXPECT_EQ(CodeOf(Join(token, "n3")), absl::StatusCode::kFailedPrecondition);
  const auto again = Join(token, "n1");
  ASSERT_OK(again.status());
  EXPECT_EQ(again->join_time, first->join_time);
  EXPECT_EQ(JoinsOf("t1"), 2);
  EXPECT_EQ(keys().FindNodeKey("n2 key")->node, "n2");
  EXPECT_EQ(CodeOf(keys().FindNodeKey("n3 key")), absl::StatusCode::kNotFound);
}

TEST_P(NodeKeys, AKeyIsOneNodesAndANameOneKeys) {
  const std::string token = AddToken(9);
  ASSERT_OK(Join(token, "n1").status());
  EXPECT_EQ(CodeOf(Join(token, "n2", "n1 key")), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(Join(token, "n1", "n2 key")), absl::StatusCode::kFailedPrecondition);
  JoinWish other_folder{.token_sha256 = token, .fingerprint = "n1 key", .node = "n1"};
  other_folder.node_uid = "another";
  EXPECT_EQ(CodeOf(keys().Join(other_folder)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(JoinsOf("t1"), 1);
  // With a second token it joins once more as what it is.
  const std::string second = AddToken();
  EXPECT_EQ(Join(second, "n1")->token_id, "t2");
  EXPECT_EQ(JoinsOf("t2"), 1);
}

TEST_P(NodeKeys, ATokenThatIsOverOrRevokedOrUnknownLetsNobodyIn) {
  const std::string token = AddToken(9, absl::Seconds(30));
  ASSERT_OK(Join(token, "n1").status());
  EXPECT_EQ(CodeOf(Join("nonsense", "n2")), absl::StatusCode::kUnauthenticated);
  const auto revoked = keys().RevokeJoinToken("t1");
  ASSERT_OK(revoked.status());
  EXPECT_EQ(keys().RevokeJoinToken("t1")->revoke_time, revoked->revoke_time);
  EXPECT_EQ(keys().RevokeJoinToken("t9").status().code(), absl::StatusCode::kNotFound);
  for (const char* node : {"n1", "n2"}) {
    EXPECT_EQ(CodeOf(Join(token, node)), absl::StatusCode::kUnauthenticated);
  }
  const std::string second = AddToken(9, absl::Seconds(30));
  backend_->Pass(absl::Seconds(31));
  EXPECT_EQ(CodeOf(Join(second, "n2")), absl::StatusCode::kFailedPrecondition);
  EXPECT_OK(keys().FindNodeKey("n1 key").status());
}

TEST_P(NodeKeys, ARevokedKeyIsOutForGoodAndItsNameIsFree) {
  const std::string token = AddToken(9);
  ASSERT_OK(Join(token, "n1").status());
  EXPECT_EQ(CodeOf(keys().RevokeNode("n2", "ann")), absl::StatusCode::kNotFound);
  const auto revoked = keys().RevokeNode("n1", "user:ann");
  ASSERT_OK(revoked.status());
  EXPECT_EQ(revoked->revoked_by, "user:ann");
  EXPECT_EQ(keys().RevokeNode("n1", "user:bob")->revoke_time, revoked->revoke_time);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckNotRevoked(*keys().FindNodeKey("n1 key"))));
  EXPECT_EQ(CodeOf(Join(token, "n1")), absl::StatusCode::kPermissionDenied);
  EXPECT_OK(Join(token, "n1", "new key").status());
  EXPECT_OK(CheckNotRevoked(*keys().FindNodeKey("new key")));
  EXPECT_EQ(keys().RevokeNode("n1", "user:bob")->fingerprint, "new key");
}

TEST_P(NodeKeys, TheSessionOfARevokedNodeCannotRenewItsLease) {
  ASSERT_OK(Join(AddToken(), "n1").status());
  NodeRecord node{.name = "n1", .uid = "n1 uid", .key_fingerprint = "n1 key"};
  node.incarnation = "i1";
  node.address = "there";
  FleetStore& fleet = backend_->stores().fleet();
  ASSERT_OK(fleet.RegisterNode(node, absl::Seconds(10)).status());
  EXPECT_OK(RenewLease(fleet, "n1", "i1", absl::Seconds(10), {}));
  ASSERT_OK(keys().RevokeNode("n1", "user:ann").status());
  EXPECT_TRUE(absl::IsAborted(RenewLease(fleet, "n1", "i1", absl::Seconds(10), {})));
}

TEST_P(NodeKeys, ANodeRegistersByItsKeyAndNobodyElseUnderItsName) {
  const auto code = [this](const std::string& node, const std::string& key) {
    NodeRecord record{.name = node, .uid = node + " uid", .key_fingerprint = key};
    record.incarnation = "i1";
    record.address = "there";
    return fleet().RegisterNode(record, absl::Seconds(10)).status().code();
  };
  ASSERT_OK(Join(AddToken(), "n1").status());
  EXPECT_EQ(code("n1", ""), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("n2", ""), absl::StatusCode::kOk);
  EXPECT_EQ(code("n1", "unknown"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("n1", "n1 key"), absl::StatusCode::kOk);
  ASSERT_OK(keys().RevokeNode("n1", "user:ann").status());
  EXPECT_EQ(code("n1", "n1 key"), absl::StatusCode::kPermissionDenied);
}

TEST_P(NodeKeys, NobodyJoinsUnderTheNameOfAnotherAgentThatIsThere) {
  NodeRecord record{.name = "n1", .uid = "n1 uid", .incarnation = "i1", .address = "there"};
  ASSERT_OK(fleet().RegisterNode(record, absl::Seconds(10)).status());
  JoinWish wish{.token_sha256 = AddToken(9), .fingerprint = "k", .node = "n1", .node_uid = "other"};
  EXPECT_EQ(CodeOf(keys().Join(wish)), absl::StatusCode::kFailedPrecondition);
  wish.node_uid = "n1 uid";
  EXPECT_OK(keys().Join(wish).status());
}

// Either the registration comes first, and the revocation takes its lease back, or it is refused.
TEST_P(NodeKeys, WhoIsRevokedWhileRegisteringHasNoLease) {
  for (int turn = 0; turn < 20; ++turn) {
    const std::string name = absl::StrCat("n", turn);
    ASSERT_OK(Join(AddToken(), name).status());
    NodeRecord record{.name = name, .uid = name + " uid", .key_fingerprint = name + " key"};
    record.incarnation = "i1";
    record.address = "there";
    std::thread revokes([&] { EXPECT_OK(keys().RevokeNode(name, "user:ann").status()); });
    const absl::Status registered = fleet().RegisterNode(record, absl::Seconds(10)).status();
    revokes.join();
    EXPECT_TRUE(registered.ok() || absl::IsPermissionDenied(registered)) << registered;
    EXPECT_TRUE(absl::IsAborted(RenewLease(fleet(), name, "i1", absl::Seconds(10), {})));
  }
}

TEST_P(NodeKeys, WhatCannotBeATokenIsRefused) {
  const auto add = [this](const JoinToken& token, absl::Duration valid_for) {
    return keys().AddJoinToken(token, valid_for).status();
  };
  const JoinToken good{.id = "t", .sha256 = "d"};
  JoinToken bad = good;
  bad.pool = "Pool A";
  EXPECT_TRUE(absl::IsInvalidArgument(add(bad, absl::Hours(1))));
  bad = good;
  bad.most_joins = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(add(bad, absl::Hours(1))));
  for (const absl::Duration span :
       {absl::ZeroDuration(), -absl::Hours(1), absl::Hours(24 * 400), absl::InfiniteDuration()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(add(good, span)));
  }
  EXPECT_OK(add(good, absl::Hours(1)));
}

TEST_P(NodeKeys, MachinesThatJoinAtOnceShareOutNamesAndJoinsWithoutConflict) {
  const std::string token = AddToken(4);
  std::atomic<int> in = 0, out = 0;
  std::vector<std::thread> machines;
  for (int i = 0; i < 12; ++i) {  // three ask for each name
    machines.emplace_back([&, i] {
      const auto joined = Join(token, absl::StrCat("n", i % 4), absl::StrCat("key ", i));
      (joined.ok() ? in : out) += 1;
      if (!joined.ok()) {
        EXPECT_EQ(CodeOf(joined), absl::StatusCode::kFailedPrecondition) << joined.status();
      }
    });
  }
  for (std::thread& machine : machines) machine.join();
  EXPECT_EQ(in, 4);
  EXPECT_EQ(out, 8);
  EXPECT_EQ(JoinsOf("t1"), 4);
}

INSTANTIATE_TEST_SUITE_P(Stores, NodeKeys, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
