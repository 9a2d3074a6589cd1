#include "executor/plan/graph/fold_tree.h"

#include <algorithm>
#include <bit>

#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Where the node `range`, of at least two leaves, splits.
int64_t SplitOf(LeafRange range) {
  const auto below = static_cast<uint64_t>(range.size() - 1);
  return range.first + static_cast<int64_t>(std::bit_floor(below));
}

// Whether `left` and `right`, which lie side by side, are the children of one node of the tree.
bool AreSiblings(int64_t leaves, LeafRange left, LeafRange right) {
  const LeafRange parent{left.first, right.end};
  LeafRange node{0, leaves};
  while (node.size() > parent.size()) {
    const int64_t split = SplitOf(node);
    if (parent.end <= split) {
      node.end = split;
    } else if (parent.first >= split) {
      node.first = split;
    } else {
      return false;
    }
  }
  return node == parent && SplitOf(node) == left.end;
}

FoldStack AddUp(int64_t leaves, LeafRange run, int64_t& most) {
  FoldStack stack(leaves);
  for (int64_t leaf = run.first; leaf < run.end; ++leaf) {
    most = std::max(most, stack.depth() + 1);
    stack.Push({leaf, leaf + 1});
  }
  return stack;
}

}  // namespace

LeafRange HostedBy(int64_t logical_ranks, int64_t ranks, int64_t rank) {
  TY_CHECK(ranks >= 1 && ranks <= logical_ranks && rank >= 0 && rank < ranks, "rank ", rank, " of ",
           ranks, " for ", logical_ranks, " logical ranks");
  return {logical_ranks * rank / ranks, logical_ranks * (rank + 1) / ranks};
}

std::vector<std::vector<LeafInTurn>> RoundsInTurn(int64_t logical_ranks, int64_t ranks) {
  std::vector<std::vector<LeafInTurn>> rounds((logical_ranks + ranks - 1) / ranks);
  FoldStack stack(logical_ranks);
  int64_t leaf = 0;
  for (size_t round = 0; round < rounds.size(); ++round) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t hosted = HostedBy(logical_ranks, ranks, rank).size();
      if (static_cast<int64_t>(round) >= hosted) continue;
      LeafInTurn next{.rank = rank, .place = stack.depth()};
      next.folds = stack.Push({leaf, leaf + 1});
      rounds[round].push_back(next);
      ++leaf;
    }
  }
  return rounds;
}

int64_t PlacesBetweenRounds(const std::vector<std::vector<LeafInTurn>>& rounds) {
  int64_t most = 0;
  for (const std::vector<LeafInTurn>& round : rounds) {
    most = std::max(most, round.back().place - round.back().folds + 1);
  }
  return most;
}

int64_t FoldStack::Push(LeafRange range) {
  TY_CHECK(sums_.empty() || sums_.back().end == range.first, "a sum from ", range.first, " on top");
  sums_.push_back(range);
  int64_t folds = 0;
  for (; sums_.size() > 1; ++folds) {
    LeafRange& below = sums_[sums_.size() - 2];
    if (!AreSiblings(leaves_, below, sums_.back())) break;
    below.end = sums_.back().end;
    sums_.pop_back();
  }
  return folds;
}

std::vector<LeafRange> RootsOf(int64_t leaves, LeafRange run) {
  int64_t most = 0;
  return AddUp(leaves, run, most).sums();
}

int64_t MostSums(int64_t logical_ranks, int64_t ranks) {
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    AddUp(logical_ranks, HostedBy(logical_ranks, ranks, rank), most);
  }
  return most;
}

}  // namespace trainyard::plan
