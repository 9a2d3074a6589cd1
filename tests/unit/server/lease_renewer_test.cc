// Heartbeats of many agents, over a store that counts its statements.

#include "server/fleet/lease_renewer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/server/refusing_fleet_store.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;

// Knows one node.
class CountingStore : public RefusingFleetStore {
 public:
  std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) override {
    groups.push_back(renewals.size());
    if (before) std::exchange(before, nullptr)();
    std::vector<absl::Status> answers;
    for (const LeaseRenewal& renewal : renewals) {
      answers.push_back(renewal.node == "n1" ? absl::OkStatus() : absl::AbortedError("over"));
    }
    return answers;
  }

  std::vector<size_t> groups;
  std::function<void()> before;  // during the next statement
};

class LeaseRenewerTest : public ::testing::Test {
 protected:
  void Renew(const std::string& node) {
    renewer_->Renew({node, "i1", absl::Seconds(10), {}}, [this, node](const absl::Status& answer) {
      answers_.push_back(absl::StrCat(node, " ", absl::StatusCodeToString(answer.code())));
    });
  }
  void RunAll() {
    while (pool_.RunOne()) {
    }
  }

  TaskPool pool_{0};
  CountingStore store_;
  std::shared_ptr<LeaseRenewer> renewer_ =
      std::make_shared<LeaseRenewer>(pool_, store_, absl::ZeroDuration());
  std::vector<std::string> answers_;
};

TEST_F(LeaseRenewerTest, WhatGatheredDuringAStatementIsTheNextOne) {
  Renew("n1");
  store_.before = [this] {
    for (int i = 0; i < 1500; ++i) Renew("n1");
  };
  RunAll();
  EXPECT_THAT(store_.groups, ElementsAre(1, 1024, 476));
  EXPECT_EQ(answers_.size(), 1501u);
}

// The first goes at once; those that come soon after it go together.
TEST_F(LeaseRenewerTest, OnesThatFollowOneAnotherShareAStatement) {
  renewer_ = std::make_shared<LeaseRenewer>(pool_, store_, absl::Milliseconds(10));
  renewer_->SetNodes(2);
  for (int i = 0; i < 4; ++i) {
    Renew("n1");
    RunAll();
  }
  EXPECT_THAT(store_.groups, ElementsAre(1));
  const absl::Time bound = absl::Now() + absl::Seconds(30);
  while (answers_.size() < 4 && absl::Now() < bound) pool_.RunOne();
  EXPECT_THAT(store_.groups, ElementsAre(1, 3));
}

TEST_F(LeaseRenewerTest, EachIsAnsweredForItself) {
  for (const char* node : {"n1", "n2", "n1"}) Renew(node);
  RunAll();
  EXPECT_THAT(store_.groups, ElementsAre(3));
  EXPECT_THAT(answers_, ElementsAre("n1 OK", "n2 ABORTED", "n1 OK"));
}

}  // namespace
}  // namespace trainyard
