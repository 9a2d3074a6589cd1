#include "server/scheduler/rank_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using Ranks = std::vector<Placement::Rank>;

std::vector<Ranks> ByNode(Ranks ranks) {
  std::map<std::string, size_t> place;
  std::vector<Ranks> nodes;
  for (Placement::Rank& rank : ranks) {
    const auto [known, added] = place.try_emplace(rank.node, nodes.size());
    if (added) nodes.emplace_back();
    nodes[known->second].push_back(std::move(rank));
  }
  return nodes;
}

}  // namespace

// Whole groups first. What is left on each node is less than a group: each further group begins on
// the node with most, and ends on the one that has least more than it needs.
void KeepGroupsTogether(Ranks& ranks, int group) {
  const auto size = static_cast<size_t>(group);
  if (group < 2 || ranks.size() < 2) return;
  std::vector<Ranks> nodes = ByNode(std::move(ranks));
  ranks.clear();
  std::set<std::pair<size_t, size_t>> left;  // how many ranks, of which node
  for (size_t i = 0; i < nodes.size(); ++i) {
    const size_t rest = nodes[i].size() % size;
    const auto whole = nodes[i].end() - static_cast<std::ptrdiff_t>(rest);
    ranks.insert(ranks.end(), nodes[i].begin(), whole);
    nodes[i].erase(nodes[i].begin(), whole);
    if (rest > 0) left.emplace(rest, i);
  }
  while (!left.empty()) {
    const size_t missing = size - ranks.size() % size;
    auto from = left.lower_bound({missing, 0});
    if (from == left.end()) from = left.lower_bound({left.rbegin()->first, 0});
    const auto [has, node] = *from;
    left.erase(from);
    const size_t takes = std::min(has, missing);
    const auto end = nodes[node].begin() + static_cast<std::ptrdiff_t>(takes);
    ranks.insert(ranks.end(), nodes[node].begin(), end);
    nodes[node].erase(nodes[node].begin(), end);
    if (has > takes) left.emplace(has - takes, node);
  }
}

int GroupsOverNodes(const Ranks& ranks, int group) {
  if (group < 2) return 0;
  const auto size = static_cast<size_t>(group);
  int over = 0;
  for (size_t begin = 0; begin < ranks.size(); begin += size) {
    bool one_node = true;
    for (size_t i = begin; i < std::min(ranks.size(), begin + size); ++i) {
      one_node = one_node && ranks[i].node == ranks[begin].node;
    }
    if (!one_node) ++over;
  }
  return over;
}

std::string DescribeGroupsOverNodes(const Ranks& ranks, int group) {
  const int over = GroupsOverNodes(ranks, group);
  if (over == 0) return "";
  const size_t all = (ranks.size() + group - 1) / group;
  return absl::StrCat(over, " of ", all, all == 1 ? " group of " : " groups of ", group,
                      " ranks that share shards (parallel.layout.tensor) ",
                      over == 1 ? "spans" : "span",
                      " nodes: within every layer these ranks wait for the network");
}

}  // namespace trainyard
