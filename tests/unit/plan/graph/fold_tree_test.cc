#include "executor/plan/graph/fold_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"

namespace trainyard::plan {
namespace {

// The sum over leaves [first, end) as text, written down from the definition of the tree.
std::string Reference(int64_t first, int64_t end) {
  if (end - first == 1) return std::to_string(first);
  int64_t left = 1;
  while (left * 2 < end - first) left *= 2;
  return "(" + Reference(first, first + left) + "+" + Reference(first + left, end) + ")";
}

// Adds up texts as a rank adds up gradients.
class Sums {
 public:
  explicit Sums(int64_t leaves) : stack_(leaves) {}
  void Push(LeafRange range, std::string text) {
    texts_.push_back(std::move(text));
    for (int64_t folds = stack_.Push(range); folds > 0; --folds) {
      const std::string top = texts_.back();
      texts_.pop_back();
      texts_.back() = "(" + texts_.back() + "+" + top + ")";
    }
  }
  const std::vector<std::string>& texts() const { return texts_; }
  const std::vector<LeafRange>& ranges() const { return stack_.sums(); }

 private:
  FoldStack stack_;
  std::vector<std::string> texts_;
};

TEST(FoldTree, AnyNumberOfRanksAddsUpInTheOrderThatTheLeavesDecide) {
  for (int64_t leaves = 1; leaves <= 40; ++leaves) {
    for (int64_t ranks = 1; ranks <= leaves; ++ranks) {
      Sums across(leaves);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const LeafRange run = HostedBy(leaves, ranks, rank);
        Sums own(leaves);
        for (int64_t leaf = run.first; leaf < run.end; ++leaf) {
          own.Push({leaf, leaf + 1}, std::to_string(leaf));
        }
        ASSERT_EQ(own.ranges(), RootsOf(leaves, run));
        for (size_t i = 0; i < own.texts().size(); ++i)
          across.Push(own.ranges()[i], own.texts()[i]);
      }
      ASSERT_EQ(across.texts(), (std::vector<std::string>{Reference(0, leaves)})) << ranks;
    }
  }
}

TEST(FoldTree, RanksHostAllLogicalRanksInOrderAndEvenly) {
  for (int64_t leaves : {1, 7, 8, 100}) {
    for (int64_t ranks = 1; ranks <= leaves; ++ranks) {
      int64_t next = 0, least = leaves, most = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const LeafRange run = HostedBy(leaves, ranks, rank);
        EXPECT_EQ(run.first, next);
        next = run.end;
        least = std::min(least, run.size());
        most = std::max(most, run.size());
      }
      EXPECT_EQ(next, leaves);
      EXPECT_LE(most - least, 1);
      EXPECT_GE(least, 1);
    }
  }
}

TEST(FoldTree, ARankHoldsFewSumsAtOnce) {
  EXPECT_EQ(MostSums(1, 1), 1);
  EXPECT_EQ(MostSums(8, 8), 1);
  EXPECT_EQ(MostSums(8, 4), 2);
  EXPECT_EQ(MostSums(8, 1), 4);
  EXPECT_EQ(MostSums(65536, 1), 17);
  for (int64_t leaves = 2; leaves <= 200; ++leaves) {
    for (int64_t ranks = 1; ranks <= leaves; ++ranks) {
      const int64_t hosted = HostedBy(leaves, ranks, ranks - 1).size();
      const int64_t log = std::bit_width(static_cast<uint64_t>(hosted - 1));
      EXPECT_LE(MostSums(leaves, ranks), std::max<int64_t>(1, 2 * log) + (hosted > 1 ? 1 : 0))
          << leaves << " on " << ranks;
    }
  }
}

// Ranks that take logical ranks in turn add them up as the tree does.
TEST(FoldTree, RanksInTurnAddUpAllLeavesInOrder) {
  for (const int64_t leaves : {1, 2, 3, 5, 8, 13, 64}) {
    for (int64_t ranks = 1; ranks <= std::min<int64_t>(leaves, 9); ++ranks) {
      const auto rounds = RoundsInTurn(leaves, ranks);
      std::vector<std::vector<int64_t>> hosted(ranks);
      std::vector<std::string> places(leaves);
      int64_t leaf = 0;
      for (const std::vector<LeafInTurn>& round : rounds) {
        ASSERT_FALSE(round.empty());
        for (const LeafInTurn& next : round) {
          hosted[next.rank].push_back(leaf);
          places[next.place] = absl::StrCat(leaf++);
          for (int64_t fold = 0; fold < next.folds; ++fold) {
            std::string& below = places[next.place - fold - 1];
            below = absl::StrCat("(", below, "+", places[next.place - fold], ")");
          }
        }
      }
      EXPECT_EQ(leaf, leaves);
      EXPECT_EQ(places[0], Reference(0, leaves));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(static_cast<int64_t>(hosted[rank].size()), HostedBy(leaves, ranks, rank).size());
      }
    }
  }
  EXPECT_EQ(PlacesBetweenRounds(RoundsInTurn(8, 8)), 1);
  EXPECT_EQ(PlacesBetweenRounds(RoundsInTurn(8, 2)), 2);
  EXPECT_EQ(PlacesBetweenRounds(RoundsInTurn(16, 4)), 2);
  EXPECT_EQ(PlacesBetweenRounds(RoundsInTurn(16, 5)), 4);
}

}  // namespace
}  // namespace trainyard::plan
