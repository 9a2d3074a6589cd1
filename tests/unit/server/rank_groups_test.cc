// Groups of ranks that share shards are placed on one node each where they can be.

#include "server/scheduler/rank_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/elastic.h"
#include "server/scheduler/explain.h"
#include "server/scheduler/slots.h"
#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

using Ranks = std::vector<Placement::Rank>;

const Arithmetic kOne = {{"device", "CPU"}, {"loops", "avx2"}};
const Arithmetic kOther = {{"device", "CPU"}, {"loops", "avx512"}};

// "a/0 a/1 b/0"
std::string Text(const Ranks& ranks) {
  return absl::StrJoin(ranks, " ", [](std::string* out, const Placement::Rank& rank) {
    absl::StrAppend(out, rank.node, "/", absl::StrJoin(rank.slots, "+"));
  });
}

// The nodes of ranks, each named by a letter.
Ranks On(const std::string& nodes) {
  Ranks ranks;
  std::map<char, int> next;
  for (const char node : nodes) {
    ranks.push_back({.node = std::string(1, node), .slots = {next[node]++}});
  }
  return ranks;
}

std::string NodesIn(const Ranks& ranks) {
  std::string nodes;
  for (const Placement::Rank& rank : ranks) nodes += rank.node;
  return nodes;
}

Ranks PlacedOn(const Snapshots& s) {
  const Pass pass = PassOver(s);
  return pass.decisions.placements.empty() ? Ranks() : pass.decisions.placements[0].ranks;
}

std::string Together(const std::string& nodes, int group) {
  Ranks ranks = On(nodes);
  KeepGroupsTogether(ranks, group);
  EXPECT_EQ(ranks.size(), nodes.size());
  return NodesIn(ranks);
}

TEST(RankGroups, AreOnOneNodeEachAsFarAsTheSlotsAllow) {
  EXPECT_EQ(Together("aaabbb", 1), "aaabbb");
  EXPECT_EQ(Together("aaabab", 2), "aaaabb");
  EXPECT_EQ(Together("aaabbb", 2), "aabbab") << "one group has to span both";
  EXPECT_EQ(Together("bababa", 3), "bbbaaa");
  EXPECT_EQ(Together("aaabbbcd", 4), "aaacbbbd") << "of those that span nodes each has two";
  EXPECT_EQ(Together("aaaaaaabcd", 5), "aaaaaaabcd");
  EXPECT_EQ(Together("aab", 2), "aab") << "a last group that is not whole";
  EXPECT_EQ(Together("abc", 5), "abc");
  EXPECT_EQ(Together("", 2), "");
  Ranks ranks = On("abab");
  KeepGroupsTogether(ranks, 2);
  EXPECT_EQ(Text(ranks), "a/0 a/1 b/0 b/1") << "ranks of a node keep their order";
}

TEST(RankGroups, AreCountedAndTheirDescriptionSaysWhatItCosts) {
  EXPECT_EQ(GroupsOverNodes(On("aabb"), 2), 0);
  EXPECT_EQ(GroupsOverNodes(On("abab"), 2), 2);
  EXPECT_EQ(GroupsOverNodes(On("aaab"), 1), 0);
  EXPECT_EQ(GroupsOverNodes(On("aaabb"), 2), 1);
  EXPECT_EQ(DescribeGroupsOverNodes(On("aabb"), 2), "");
  EXPECT_EQ(
      DescribeGroupsOverNodes(On("aaabcb"), 2),
      "2 of 3 groups of 2 ranks that share shards (parallel.layout.tensor) span nodes: within "
      "every layer these ranks wait for the network");
  EXPECT_THAT(DescribeGroupsOverNodes(On("ab"), 2), HasSubstr("1 of 1 group of 2 ranks that share "
                                                              "shards (parallel.layout.tensor) "
                                                              "spans nodes"));
}

TEST(RankGroups, ComeBeforeFewNodes) {
  const auto nodes = [] {
    return Snapshots()
        .Node({.name = "a", .cpu = 6})
        .Node({.name = "b", .cpu = 4})
        .Node({.name = "c", .cpu = 5});
  };
  EXPECT_EQ(Text(PlacedOn(nodes().Queued({.id = "g", .slots = 8}))),
            "a/0 a/1 a/2 a/3 a/4 a/5 b/0 b/1");
  EXPECT_EQ(Text(PlacedOn(nodes().Queued({.id = "g", .slots = 8, .group = 4}))),
            "b/0 b/1 b/2 b/3 c/0 c/1 c/2 c/3")
      << "the largest node stays whole";
  EXPECT_EQ(Text(PlacedOn(nodes().Queued({.id = "g", .slots = 6, .group = 3}))),
            "a/0 a/1 a/2 a/3 a/4 a/5");
}

TEST(RankGroups, AreSplitWhereTheyMustBeAndTheReasonSaysSo) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 3}).Node({.name = "b", .cpu = 3}).Node({.name = "c", .cpu = 2});
  s.Queued({.id = "g", .slots = 8, .group = 4});
  const Pass pass = PassOver(s);
  ASSERT_EQ(pass.decisions.placements.size(), 1u) << "it does not wait for better slots";
  EXPECT_EQ(NodesIn(pass.decisions.placements[0].ranks), "aaacbbbc");
  EXPECT_EQ(pass.decisions.placements[0].reason.message,
            "8 slots on a, c, b; 2 of 2 groups of 4 ranks that share shards "
            "(parallel.layout.tensor) span nodes: within every layer these ranks wait for the "
            "network");
  s.snapshot.jobs[0].group_ranks = 2;
  EXPECT_EQ(NodesIn(PlacedOn(s)), "ccaabbab") << "the node that has just one group comes first";
  EXPECT_THAT(PassOver(s).decisions.placements[0].reason.message,
              EndsWith("8 slots on c, a, b; 1 of 4 groups of 2 ranks that share shards "
                       "(parallel.layout.tensor) spans nodes: within every layer these ranks wait "
                       "for the network"));
}

TEST(RankGroups, DecideBetweenSlotsThatComputeDifferently) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 3, .arithmetic = kOne})
      .Node({.name = "b", .cpu = 3, .arithmetic = kOne})
      .Node({.name = "c", .cpu = 2, .arithmetic = kOther})
      .Node({.name = "d", .cpu = 2, .arithmetic = kOther})
      .Node({.name = "e", .cpu = 2, .arithmetic = kOther});
  s.Queued({.id = "g", .slots = 6});
  EXPECT_EQ(NodesIn(PlacedOn(s)), "aaabbb");
  s.snapshot.jobs[0].group_ranks = 2;
  EXPECT_EQ(NodesIn(PlacedOn(s)), "ccddee");
}

TEST(RankGroups, AreToldOfByExplain) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 2}).Node({.name = "b", .cpu = 2}).Running({.id = "g"}, "a", {0, 1});
  JobRecord& job = s.snapshot.jobs[0];
  AttemptRecord& attempt = s.snapshot.attempts[0];
  job.group_ranks = 2;
  const auto details = [&] { return Explain(job, {attempt}, s.snapshot, {}).details; };
  EXPECT_THAT(details(), Not(Contains(HasSubstr("span"))));
  attempt.ranks[1].node = "b";
  EXPECT_THAT(details(), Contains(HasSubstr("1 of 1 group of 2 ranks that share shards "
                                            "(parallel.layout.tensor) spans nodes")));
}

// Of a job whose user has asked for another number of slots while it ran.
Ranks ResizedTo(Snapshots s, int slots) {
  s.snapshot.jobs[0].min_slots = s.snapshot.jobs[0].max_slots = slots;
  const Pass pass = PassOver(s);
  if (pass.decisions.resizes.size() != 1) return {};
  return pass.decisions.resizes[0].ranks;
}

Snapshots RunningOn(const std::string& nodes) {
  Snapshots s;
  for (const char* name : {"a", "b", "c"}) s.Node({.name = name, .cpu = 6});
  s.Running({.id = "g", .group = 4}, "a", std::vector<int>(nodes.size()));
  const Ranks ranks = On(nodes);
  for (size_t i = 0; i < ranks.size(); ++i) {
    s.snapshot.attempts[0].ranks[i].node = ranks[i].node;
    s.snapshot.attempts[0].ranks[i].slots = ranks[i].slots;
  }
  return s;
}

TEST(RankGroups, StayWholeWhenAJobIsResized) {
  EXPECT_EQ(NodesIn(ResizedTo(RunningOn("aaaa"), 8)), "aaaabbbb") << "the two of a stay free";
  EXPECT_EQ(NodesIn(ResizedTo(RunningOn("aaaabbbb"), 4)), "aaaa");
  EXPECT_EQ(NodesIn(ResizedTo(RunningOn("aaaabbbbaabb"), 8)), "aaaabbbb");
  EXPECT_EQ(NodesIn(ResizedTo(RunningOn("aaab"), 8)), "aaaabbbb") << "what is split is made whole";
}

// A random table of nodes, written apart from SlotTable: what is free in each pool, by node.
class RandomNodes {
 public:
  explicit RandomNodes(uint64_t seed) : random_(seed) {
    const int nodes = 1 + Draw(10);
    for (int n = 0; n < nodes; ++n) {
      NodeRecord node = MakeNode({.name = absl::StrCat("n", n),
                                  .cpu = Draw(9),
                                  .cuda = Draw(4) == 0 ? Draw(5) : 0,
                                  .arithmetic = Draw(3) == 0 ? kOther : kOne});
      for (SlotRecord& slot : node.slots) {
        if (Draw(6) == 0) slot.memory_bytes = 100;  // too small
      }
      s_.snapshot.nodes.push_back(std::move(node));
    }
    for (const NodeRecord& node : s_.snapshot.nodes) {
      std::vector<int> taken;
      for (const SlotRecord& slot : node.slots) {
        if (Draw(3) == 0) {
          taken.push_back(slot.index);
        } else if (slot.memory_bytes >= kBytes) {
          free_[{slot.device, ArithmeticToText(slot.arithmetic)}][node.name].insert(slot.index);
        }
      }
      if (!taken.empty()) s_.Running({.id = "on-" + node.name}, node.name, taken);
    }
  }

  int Draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  const SchedulerSnapshot& snapshot() const { return s_.snapshot; }

  using Pool = std::map<std::string, std::set<int>>;  // slots by node
  // Those that may hold a gang, of the device that comes first.
  std::vector<Pool> AblePools(const SlotDemand& demand) const {
    std::vector<Pool> able;
    for (const char* device : {"CUDA", "CPU"}) {
      if (!demand.device.empty() && demand.device != device) continue;
      std::vector<Pool> pools;
      for (const auto& [kind, pool] : free_) {
        if (kind.first != device) continue;
        if (!demand.mixed || pools.empty()) pools.emplace_back();
        for (const auto& [node, slots] : pool) pools.back()[node] = slots;
      }
      for (const Pool& pool : pools) {
        size_t free = 0;
        for (const auto& [node, slots] : pool) free += slots.size();
        if (free >= static_cast<size_t>(demand.count)) able.push_back(pool);
      }
      if (!able.empty()) break;
    }
    return able;
  }

  static constexpr int64_t kBytes = int64_t{1} << 30;

 private:
  std::mt19937_64 random_;
  Snapshots s_;
  std::map<std::pair<std::string, std::string>, Pool> free_;
};

// The fewest groups over nodes that any choice of slots has, and then the fewest nodes.
std::pair<int, int> Best(const std::vector<RandomNodes::Pool>& able, int groups, int size) {
  std::pair<int, int> best(groups + 1, 0);
  for (const RandomNodes::Pool& pool : able) {
    std::vector<int> whole;
    for (const auto& [node, slots] : pool) whole.push_back(static_cast<int>(slots.size()) / size);
    std::sort(whole.rbegin(), whole.rend());
    int placed = 0, nodes = 0;
    for (; placed < groups && nodes < static_cast<int>(whole.size()) && whole[nodes] > 0; ++nodes) {
      placed += whole[nodes];
    }
    best = std::min(best, {std::max(0, groups - placed), nodes});
  }
  return best;
}

TEST(RankGroups, NeverLoseAPlacementAndAreSplitAsSeldomAsCanBe) {
  int placed = 0, whole = 0, split = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    RandomNodes nodes(seed);
    const SlotTable slots(nodes.snapshot());
    const int size = 2 + nodes.Draw(4), groups = 1 + nodes.Draw(5);
    SlotDemand demand{.count = groups * size, .bytes = RandomNodes::kBytes, .group = size};
    if (nodes.Draw(2) == 0) demand.device = "CPU";
    demand.mixed = nodes.Draw(3) == 0;
    SlotDemand alone = demand;
    alone.group = 1;
    const std::optional<Ranks> found = slots.Find(demand);
    ASSERT_EQ(found.has_value(), slots.Find(alone).has_value()) << seed;
    const std::vector<RandomNodes::Pool> able = nodes.AblePools(demand);
    ASSERT_EQ(found.has_value(), !able.empty()) << seed;
    if (!found.has_value()) continue;
    ++placed;
    ASSERT_EQ(static_cast<int>(found->size()), demand.count) << seed;
    std::set<std::pair<std::string, int>> taken;
    std::set<std::string> on;
    for (const Placement::Rank& rank : *found) {
      ASSERT_EQ(rank.slots.size(), 1u);
      ASSERT_TRUE(taken.emplace(rank.node, rank.slots[0]).second) << seed << ": twice";
      on.insert(rank.node);
    }
    // All of one pool, free, and large enough.
    EXPECT_TRUE(std::any_of(able.begin(), able.end(), [&](const RandomNodes::Pool& pool) {
      return std::all_of(taken.begin(), taken.end(), [&](const auto& slot) {
        const auto node = pool.find(slot.first);
        return node != pool.end() && node->second.count(slot.second) > 0;
      });
    })) << seed;
    const std::pair<int, int> best = Best(able, groups, size);
    EXPECT_EQ(GroupsOverNodes(*found, size), best.first) << seed << ": " << Text(*found);
    if (best.first == 0) {
      EXPECT_EQ(static_cast<int>(on.size()), best.second) << seed;
    }
    ++(best.first == 0 ? whole : split);
  }
  EXPECT_GT(placed, 1000);
  EXPECT_GT(whole, 300);
  EXPECT_GT(split, 300);
}

}  // namespace
}  // namespace trainyard
