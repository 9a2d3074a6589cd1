#include "executor/plan/graph/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "executor/plan/graph/ops.h"

namespace trainyard::plan {
namespace {

constexpr int64_t kLeaf = kernels::kNormLeaf;

struct Case {
  int64_t elements = 0;
  std::vector<ElementRange> whole;
};

const std::vector<Case> kCases = {
    {0, {}},
    {16, {}},
    {5000, {}},
    {kLeaf, {}},
    {3 * kLeaf + 48, {}},
    {100 * kLeaf, {}},
    {70'000'000, {}},
    {200'000, {{0, 4096}, {4096, 70'000}, {70'000, 70'400}, {150'000, 200'000}}},
    {100 * kLeaf, {{0, 100 * kLeaf}}},
};

TEST(Shares, EveryElementIsInOneSliceAndNoWholeRunIsCut) {
  for (const Case& c : kCases) {
    for (const int64_t ranks : {1, 2, 3, 8, 64}) {
      const std::vector<Bucket> buckets = CutBuckets(c.elements, c.whole, ranks);
      int64_t end = 0;
      std::set<int64_t> cuts;
      for (const Bucket& bucket : buckets) {
        EXPECT_EQ(bucket.elements.first, end);
        EXPECT_EQ(static_cast<int64_t>(bucket.slices.size()), ranks);
        end = bucket.elements.end;
      }
      EXPECT_EQ(end, c.elements);
      end = 0;
      for (const RankSlice& slice : SlicesInOrder(buckets)) {
        EXPECT_EQ(slice.elements.first, end) << c.elements << " elements, " << ranks << " ranks";
        end = slice.elements.end;
        cuts.insert(end);
      }
      EXPECT_EQ(end, c.elements);
      for (const ElementRange& run : c.whole) {
        const auto cut = cuts.upper_bound(run.first);
        EXPECT_TRUE(cut == cuts.end() || *cut >= run.end) << *cut;
      }
    }
  }
}

TEST(Shares, ABucketHasAllOfWhatLiesTogether) {
  const std::vector<ElementRange> together = {{0, 32},
                                              {32, 3'000'000},
                                              {3'000'000, 3'000'016},
                                              {3'000'016, 3'100'000},
                                              {3'100'000, 9'000'000}};
  for (const int64_t ranks : {1, 2, 3, 8}) {
    int64_t end = 0;
    const std::vector<Bucket> buckets = CutBuckets(9'000'000, {}, ranks, together);
    EXPECT_GT(buckets.size(), 1u);
    for (const Bucket& bucket : buckets) {
      EXPECT_EQ(bucket.elements.first, end);
      end = bucket.elements.end;
      const auto ends = [&](const ElementRange& run) { return run.end == end; };
      EXPECT_TRUE(std::any_of(together.begin(), together.end(), ends)) << end;
    }
    EXPECT_EQ(end, 9'000'000);
  }
}

TEST(Shares, RanksHaveAboutAsMuch) {
  constexpr int64_t kElements = 70'000'000, kRanks = 8;
  std::vector<int64_t> of_rank(kRanks);
  for (const Bucket& bucket : CutBuckets(kElements, {}, kRanks)) {
    for (int64_t r = 0; r < kRanks; ++r) of_rank[r] += bucket.slices[r].size();
  }
  for (const int64_t n : of_rank) EXPECT_NEAR(n, kElements / kRanks, kElements / kRanks / 20);
}

// Leaves that a rank is given the rest of, and those that lie in its slice, are all of them.
TEST(Shares, EveryLeafHasOneOwnerThatCanHaveAllOfIt) {
  for (const Case& c : kCases) {
    for (const int64_t ranks : {2, 3, 8}) {
      const std::vector<Bucket> buckets = CutBuckets(c.elements, c.whole, ranks);
      std::vector<std::set<int64_t>> has(ranks);  // by rank: the elements
      std::vector<int64_t> owner((c.elements + kLeaf - 1) / kLeaf, -1);
      for (const RankSlice& slice : SlicesInOrder(buckets)) {
        const ElementRange leaves = LeavesOf(slice.elements);
        for (int64_t leaf = leaves.first; leaf < leaves.end; ++leaf) {
          EXPECT_EQ(owner[leaf], -1);
          owner[leaf] = slice.rank;
        }
      }
      if (c.elements > 1'000'000) continue;
      const auto take = [&](int64_t rank, const ElementRange& range) {
        for (int64_t i = range.first; i < range.end; ++i) has[rank].insert(i);
      };
      for (const RankSlice& slice : SlicesInOrder(buckets)) take(slice.rank, slice.elements);
      for (const SharedLeaf& leaf : SharedLeaves(buckets)) {
        EXPECT_NE(leaf.owner, leaf.holder);
        take(leaf.owner, leaf.elements);
      }
      for (int64_t i = 0; i < c.elements; ++i) {
        ASSERT_TRUE(has[owner[i / kLeaf]].contains(i)) << i << " of " << c.elements;
      }
    }
  }
}

// Cases of slices with two owners.
struct Owned {
  int64_t ranks = 0;
  std::vector<Bucket> buckets;
};
std::vector<Owned> TwoOwners() {
  std::vector<Owned> all;
  for (const Case& c : kCases) {
    for (const int64_t ranks : {2, 3, 4, 5, 8, 9}) {
      all.push_back({ranks, CutBuckets(c.elements, c.whole, ranks, {}, 2)});
    }
  }
  return all;
}

TEST(TwoOwners, AnyHalfOfTheRanksThatAreNeighboursMayBeLost) {
  for (const auto& [ranks, buckets] : TwoOwners()) {
    for (int64_t first = 0; first < ranks; ++first) {
      std::vector<int64_t> left;
      for (int64_t r = 0; r < ranks; ++r) {
        if ((r - first + ranks) % ranks >= ranks / 2) left.push_back(r);
      }
      EXPECT_TRUE(CoverAll(BucketsOf(buckets, left))) << ranks << " ranks, lost from " << first;
    }
    int64_t sum = 0, elements = 0;
    for (const Bucket& bucket : buckets) {
      elements += bucket.elements.size();
      for (const ElementRange& slice : bucket.slices) sum += slice.size();
    }
    EXPECT_GE(sum, 2 * elements);
    EXPECT_LE(sum, 3 * elements) << "those of an odd number of ranks have one more";
    if (ranks % 2 == 0) {
      EXPECT_EQ(sum, 2 * elements);
    }
  }
  const std::vector<Bucket> four = CutBuckets(100 * kLeaf, {}, 4, {}, 2);
  EXPECT_FALSE(CoverAll(BucketsOf(four, {0, 2}))) << "the owners of the other half are lost";
}

// Every rank gets what it does not have, each slice once, and who sends knows it.
TEST(TwoOwners, EachSliceReachesAllRanksOnce) {
  for (const auto& [ranks, buckets] : TwoOwners()) {
    for (const Bucket& bucket : buckets) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Handing handing = HandingOf(bucket, rank);
        int64_t received = bucket.slices[rank].size();
        for (int64_t other = 0; other < ranks; ++other) {
          EXPECT_EQ(handing.from[other], HandingOf(bucket, other).to[rank]);
          if (handing.from[other]) received += bucket.slices[other].size();
        }
        EXPECT_EQ(received, bucket.elements.size());
      }
    }
  }
}

TEST(TwoOwners, TheSourceIsInTheSameHalf) {
  EXPECT_EQ(SourceOf(1, 2, 0, 4), 1);
  EXPECT_EQ(SourceOf(1, 2, 2, 4), 3);
  EXPECT_EQ(SourceOf(0, 2, 4, 5), 4);
  EXPECT_EQ(SourceOf(1, 2, 4, 5), 3);
  for (const int64_t ranks : {2, 3, 4, 5, 8, 9}) {
    const std::vector<Bucket> buckets = CutBuckets(1000 * kLeaf, {}, ranks, {}, 2);
    const int64_t slices = SlicesFor(ranks, 2);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Handing handing = HandingOf(buckets[0], rank);
      for (int64_t slice = 0; slice < slices; ++slice) {
        if (slice == rank % slices) continue;
        EXPECT_TRUE(handing.from[SourceOf(slice, slices, rank, ranks)]) << "by both rules";
      }
    }
  }
}

TEST(TwoOwners, EachOwnerOfALeafGetsTheRestOfIt) {
  for (const auto& [ranks, buckets] : TwoOwners()) {
    std::vector<int64_t> given(ranks), missing(ranks);
    for (const SharedLeaf& leaf : DividedLeaves(buckets)) given[leaf.owner] += leaf.elements.size();
    const std::vector<RankSlice> slices = SlicesInOrder(buckets);
    for (const RankSlice& slice : slices) {
      const int64_t end =
          std::min(slices.back().elements.end, LeavesOf(slice.elements).end * kLeaf);
      if (LeavesOf(slice.elements).size() == 0) continue;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        if (buckets[slice.bucket].slices[rank] == slice.elements) {
          missing[rank] += end - slice.elements.end;
        }
      }
    }
    EXPECT_EQ(given, missing) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace trainyard::plan
