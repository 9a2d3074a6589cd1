// Which ranks of a gang belong together, and whom a group's exchanges reach.

#include "executor/engine/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;

// Rank `rank` of six. Notes what it is asked to exchange: "0<-ab", for each peer what is sent to
// it.
class NotedHosts : public Communicator {
 public:
  explicit NotedHosts(int rank) : rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return 6; }
  absl::Status Exchange(absl::Span<const Transfer> transfers) override {
    for (const Transfer& transfer : transfers) {
      noted.push_back(absl::StrCat(transfer.peer, "<-",
                                   absl::string_view(transfer.send.data(), transfer.send.size())));
    }
    return absl::OkStatus();
  }
  void Abort(absl::Status) override {}
  absl::Status Failure() const override { return absl::OkStatus(); }
  std::string name(int rank) const override { return absl::StrCat("rank ", rank); }
  bool shares_memory(int rank) const override { return rank < 3; }
  void SetPatience(absl::Duration) override {}
  int64_t bytes_sent() const override { return 0; }

  std::vector<std::string> noted;

 private:
  const int rank_;
};

// The same of links between GPUs.
class NotedLinks : public DeviceCommunicator {
 public:
  explicit NotedLinks(int rank) : hosts(rank) {}
  int rank() const override { return hosts.rank(); }
  int size() const override { return hosts.size(); }
  absl::Status Exchange(kernels::Stream&, absl::Span<const Transfer> transfers) override {
    return hosts.Exchange(transfers);
  }
  absl::Status AllGather(kernels::Stream&, absl::Span<const absl::Span<char>>) override {
    return absl::InternalError("of all ranks, not of a group");
  }
  absl::Status Await(kernels::Event&) override { return absl::OkStatus(); }
  void SetPatience(absl::Duration) override {}

  NotedHosts hosts;
};

// The name in the whole gang of each rank of `group`.
std::vector<std::string> NamesIn(const Gang& group) {
  std::vector<std::string> names;
  for (int rank = 0; rank < group.size(); ++rank) names.push_back(group.communicator().name(rank));
  return names;
}

TEST(Groups, NeighboursShareShardsAndThoseOfOnePlaceShareLogicalRanks) {
  NotedHosts third(3);
  const Gang all(&third);
  const Groups groups(all, 2);
  EXPECT_EQ(groups.all().size(), 6);
  EXPECT_THAT(NamesIn(groups.shards()), ElementsAre("rank 2", "rank 3"));
  EXPECT_EQ(groups.shards().rank(), 1);
  EXPECT_THAT(NamesIn(groups.data()), ElementsAre("rank 1", "rank 3", "rank 5"));
  EXPECT_EQ(groups.data().rank(), 1);
}

TEST(Groups, OfAllRanksHostTheLogicalRanksAlone) {
  NotedHosts third(3);
  const Groups groups(Gang(&third), 6);
  EXPECT_EQ(groups.shards().size(), 6);
  EXPECT_EQ(groups.shards().rank(), 3);
  EXPECT_TRUE(groups.data().alone());
}

TEST(Groups, OfOneRankHostAllShards) {
  NotedHosts third(3);
  const Groups groups(Gang(&third), 1);
  EXPECT_TRUE(groups.shards().alone());
  EXPECT_EQ(groups.data().size(), 6);
}

TEST(Groups, ExchangeWithTheirOwnRanks) {
  NotedHosts fourth(4);
  const Groups groups(Gang(&fourth), 2);
  const std::string first = "to 0", last = "to 2";
  const std::vector<Transfer> transfers = {{.peer = 0, .send = first}, {.peer = 1, .send = last}};
  ASSERT_TRUE(groups.data().communicator().Exchange(transfers).ok());
  ASSERT_TRUE(groups.shards().communicator().Exchange({{.peer = 1, .send = last}}).ok());
  EXPECT_THAT(fourth.noted, ElementsAre("0<-to 0", "2<-to 2", "5<-to 2"));
  EXPECT_TRUE(groups.data().communicator().shares_memory(1));
  EXPECT_FALSE(groups.shards().communicator().shares_memory(1));
}

TEST(PartOfLinks, ExchangesAndGathersAmongItsMembersAlone) {
  NotedLinks fourth(4);
  PartOfLinks part(fourth, {1, 4, 5});
  EXPECT_EQ(part.rank(), 1);
  EXPECT_EQ(part.size(), 3);
  kernels::Stream stream;
  std::string own = "own", others = "???";
  ASSERT_TRUE(part.Exchange(stream, {{.peer = 2, .send = own}}).ok());
  std::vector<absl::Span<char>> parts = {absl::MakeSpan(others), absl::MakeSpan(own),
                                         absl::MakeSpan(others)};
  ASSERT_TRUE(part.AllGather(stream, parts).ok());
  EXPECT_THAT(fourth.hosts.noted, ElementsAre("5<-own", "1<-own", "5<-own"));
}

}  // namespace
}  // namespace trainyard::engine
