// Groups of events, over a store that says when it is away.

#include "server/fleet/event_committer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/server/refusing_fleet_store.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;

// Takes events in order, as a store does, and remembers the sizes of the groups.
class GroupStore : public RefusingFleetStore {
 public:
  std::vector<absl::StatusOr<AppendResult>> AppendGroup(
      const std::vector<RankEvents>& group) override {
    groups.push_back(group.size());
    if (before) std::exchange(before, nullptr)();
    return FleetStore::AppendGroup(group);
  }
  absl::StatusOr<AppendResult> AppendEvents(const RankEvents& report) override {
    const auto& [agent, rank, events, claim] = report;
    if (refusals-- > 0) return absl::UnavailableError("away");
    int64_t& acked = stored[rank.job_uid];
    for (const RankEventRecord& event : events) {
      if (event.sequence <= acked) continue;
      if (event.sequence != acked + 1) return absl::InvalidArgumentError("a gap");
      acked = event.sequence;
    }
    AppendResult result{.acked_sequence = acked};
    if (has_items) result.items = NumberedItems(acked, {FeedRecord()});
    return result;
  }

  std::vector<size_t> groups;
  int refusals = 0;
  bool has_items = false;
  std::function<void()> before;  // during the next group
  std::map<std::string, int64_t> stored;
};

class EventCommitterTest : public ::testing::Test {
 protected:
  void Append(const std::string& job, int64_t sequence) {
    committer_->Append({"n1", {job, 1, 0}, {{.sequence = sequence}}},
                       [this, job](const absl::StatusOr<AppendResult>& result) {
                         answers_.push_back(absl::StrCat(
                             job, " ",
                             result.ok() ? absl::StrCat(result->acked_sequence)
                                         : absl::StatusCodeToString(result.status().code())));
                       });
  }
  void RunAll() {
    while (pool_.RunOne()) {
    }
  }

  TaskPool pool_{0};
  GroupStore store_;
  std::shared_ptr<EventCommitter> committer_ = std::make_shared<EventCommitter>(pool_, store_);
  std::vector<std::string> answers_;
};

TEST_F(EventCommitterTest, WhatGatheredDuringACommitIsTheNextGroup) {
  Append("a", 1);
  store_.before = [this] {
    for (int i = 0; i < 300; ++i) Append(absl::StrCat("job", i), 1);
  };
  RunAll();
  EXPECT_THAT(store_.groups, ElementsAre(1, 256, 44));
  EXPECT_EQ(answers_.size(), 301u);
  EXPECT_EQ(answers_.back(), "job299 1");
}

TEST_F(EventCommitterTest, EachIsAnsweredForItself) {
  Append("a", 1);
  Append("b", 5);
  Append("c", 1);
  Append("a", 2);
  RunAll();
  EXPECT_THAT(store_.groups, ElementsAre(4));
  EXPECT_THAT(answers_, ElementsAre("a 1", "b INVALID_ARGUMENT", "c 1", "a 2"));
}

TEST_F(EventCommitterTest, ListenerIsToldOfWhatWasStoredBeforeAnythingIsAnswered) {
  std::vector<std::string> told;
  committer_ = std::make_shared<EventCommitter>(
      pool_, store_, [&](const std::string& uid, const SharedItems& items) {
        EXPECT_TRUE(answers_.empty());
        told.push_back(absl::StrCat(uid, " ", items->front().sequence));
      });
  Append("a", 1);
  Append("b", 5);
  Append("c", 1);
  Append("a", 2);
  store_.has_items = true;
  RunAll();
  EXPECT_THAT(told, ElementsAre("a 1", "c 1", "a 2"));
  EXPECT_EQ(answers_.size(), 4u);
  answers_.clear();
  store_.has_items = false;
  Append("c", 2);
  RunAll();
  EXPECT_EQ(told.size(), 3u) << "nothing was added to the feed";
  EXPECT_THAT(answers_, ElementsAre("c 2"));
}

TEST_F(EventCommitterTest, NothingOvertakesWhatTheStoreWasAwayFor) {
  store_.refusals = 1;
  store_.before = [this] { Append("a", 2); };  // it waits behind the group
  Append("a", 1);
  RunAll();
  EXPECT_THAT(answers_, ElementsAre("a UNAVAILABLE", "a UNAVAILABLE"));
  EXPECT_TRUE(store_.stored["a"] == 0);
  Append("a", 1);
  Append("a", 2);
  RunAll();
  EXPECT_EQ(store_.stored["a"], 2);
}

}  // namespace
}  // namespace trainyard
