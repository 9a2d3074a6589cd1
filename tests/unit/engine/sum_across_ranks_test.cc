#include "executor/engine/sum_across_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/unit/engine/in_threads.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSums = 3;

// Of magnitudes so different that another order of addition gives other bits.
float ValueOf(int64_t leaf, int64_t i) {
  return std::sin(static_cast<float>(leaf * 31 + i)) *
         std::exp2(static_cast<float>((leaf * 7 + i) % 20));
}

struct Sum {
  std::vector<double> sums;
  std::vector<float> gradients;
  PartialSum view() { return {absl::MakeSpan(sums), absl::MakeSpan(gradients)}; }
};

Sum LeafOf(int64_t leaf, int64_t n) {
  Sum sum;
  for (int64_t i = 0; i < kSums; ++i) sum.sums.push_back(ValueOf(leaf, i) * 1e-3);
  for (int64_t i = 0; i < n; ++i) sum.gradients.push_back(ValueOf(leaf, i));
  return sum;
}

void AddTo(Sum& total, const Sum& part) {
  for (size_t i = 0; i < total.sums.size(); ++i) total.sums[i] += part.sums[i];
  for (size_t i = 0; i < total.gradients.size(); ++i) total.gradients[i] += part.gradients[i];
}

// What is left of `run`, added up as a rank does.
std::vector<Sum> AddUp(int64_t leaves, plan::LeafRange run, int64_t n) {
  plan::FoldStack stack(leaves);
  std::vector<Sum> sums;
  for (int64_t leaf = run.first; leaf < run.end; ++leaf) {
    sums.push_back(LeafOf(leaf, n));
    for (int64_t folds = stack.Push({leaf, leaf + 1}); folds > 0; --folds) {
      AddTo(sums[sums.size() - 2], sums.back());
      sums.pop_back();
    }
  }
  return sums;
}

absl::Status AddAcross(SumAcrossRanks& across, Communicator& gang,
                       const std::vector<PartialSum>& own) {
  absl::Status status = across.AddSums(own);
  const auto n = static_cast<int64_t>(own[0].gradients.size());
  for (const plan::Bucket& bucket : plan::CutBuckets(n, {}, gang.size())) {
    if (status.ok()) status = across.Reduce(bucket, own);
    if (status.ok())
      status = across.Gather(bucket, plan::HandingOf(bucket, gang.rank()), own[0].gradients);
  }
  return status;
}

TEST(SumAcrossRanks, AnyNumberOfRanksGivesTheBitsOfOne) {
  // Less than a line per rank, a piece and a bit, and pieces of which the last is short.
  for (const int64_t n : {int64_t{5}, int64_t{70000}, int64_t{400003}}) {
    const Sum expected = AddUp(8, {0, 8}, n)[0];
    for (const int ranks : {1, 2, 3, 5, 8}) {
      InThreads(ranks, [&](Communicator& gang) {
        SumAcrossRanks across(gang, 8);
        for (int step = 0; step < 2; ++step) {
          std::vector<Sum> own = AddUp(8, plan::HostedBy(8, ranks, gang.rank()), n);
          ASSERT_EQ(across.own(), static_cast<int64_t>(own.size()));
          std::vector<PartialSum> views;
          for (Sum& sum : own) views.push_back(sum.view());
          const absl::Status status = AddAcross(across, gang, views);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_EQ(own[0].sums, expected.sums) << ranks << " ranks, " << n << " elements";
          EXPECT_EQ(0,
                    memcmp(own[0].gradients.data(), expected.gradients.data(), n * sizeof(float)))
              << ranks << " ranks, " << n << " elements";
        }
      });
    }
  }
}

TEST(SumAcrossRanks, SendsWhatItsHeaderSays) {
  constexpr int64_t kElements = 64000;
  InThreads(4, [&](Communicator& gang) {
    SumAcrossRanks across(gang, 4);
    Sum own = LeafOf(gang.rank(), kElements);
    const int64_t before = gang.bytes_sent();
    ASSERT_TRUE(AddAcross(across, gang, {own.view()}).ok());
    const int64_t gradients = kElements * static_cast<int64_t>(sizeof(float));
    const int64_t sums = 3 * kSums * static_cast<int64_t>(sizeof(double));
    EXPECT_EQ(gang.bytes_sent() - before, 2 * gradients * 3 / 4 + sums);
  });
}

}  // namespace
}  // namespace trainyard::engine
