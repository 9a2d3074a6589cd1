#include "executor/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace trainyard::data {
namespace {

// Sample i is the i32 i with the target -i.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t size, bool with_replacement = false)
      : size_(size), with_replacement_(with_replacement) {
    input_bytes_ = target_bytes_ = sizeof(int32_t);
  }

  int64_t size(Split) const override { return size_; }
  bool sampled_with_replacement() const override { return with_replacement_; }
  int64_t bytes() const override { return 0; }
  int64_t grain() const override { return grain_; }

  absl::Status Fill(Split, absl::Span<const int64_t> samples, void* inputs,
                    void* targets) const override {
    if (fills_.fetch_add(1) == fail_at) return absl::DataLossError("FILE: ends at byte 7");
    for (size_t i = 0; i < samples.size(); ++i) {
      static_cast<int32_t*>(inputs)[i] = static_cast<int32_t>(samples[i]);
      static_cast<int32_t*>(targets)[i] = -static_cast<int32_t>(samples[i]);
    }
    return absl::OkStatus();
  }

  absl::Status FillForTraining(uint64_t seed, absl::Span<const int64_t> samples,
                               absl::Span<const int64_t> epochs, void* inputs,
                               void* targets) const override {
    EXPECT_EQ(seed, 1337u);
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i] == fail_on) {
        return absl::DataLossError(absl::StrCat("sample ", fail_on, " in epoch ", epochs[i]));
      }
    }
    return Fill(Split::kTrain, samples, inputs, targets);
  }

  int64_t fills() const { return fills_; }
  int64_t fail_at = -1;  // which call fails
  int64_t fail_on = -1;  // which sample fails
  void set_grain(int64_t grain) { grain_ = grain; }

 private:
  const int64_t size_;
  const bool with_replacement_;
  int64_t grain_ = 0;
  mutable std::atomic<int64_t> fills_ = 0;
};

std::vector<int32_t> InputsOf(const Loader::Batch& batch, int64_t n) {
  const auto* inputs = static_cast<const int32_t*>(batch.inputs);
  return std::vector<int32_t>(inputs, inputs + n);
}

// The inputs of `steps` steps of a whole batch, one after the other.
std::vector<int32_t> Train(const Dataset& dataset, Loader::Options options, int64_t steps) {
  Loader loader(dataset, options);
  std::vector<int32_t> all;
  for (int64_t i = 0; i < steps * options.samples / options.micro_batch; ++i) {
    const auto batch = loader.Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    for (const int32_t v : InputsOf(*batch, options.micro_batch)) all.push_back(v);
  }
  return all;
}

Loader::Options Options(int64_t batch, int64_t micro) {
  return {.seed = 1337, .batch_size = batch, .samples = batch, .micro_batch = micro, .prefetch = 3};
}

TEST(Order, VisitsEachSampleOncePerEpoch) {
  for (const int64_t size : {1, 2, 3, 7, 64, 1000, 4097}) {
    const Order order(1337, size, false);
    std::vector<std::vector<int64_t>> epochs(3);
    for (int64_t e = 0; e < 3; ++e) {
      for (int64_t i = 0; i < size; ++i) epochs[e].push_back(order.Sample(e * size + i));
      std::vector<int64_t> sorted = epochs[e];
      std::sort(sorted.begin(), sorted.end());
      for (int64_t i = 0; i < size; ++i) ASSERT_EQ(sorted[i], i) << size;
    }
    if (size >= 7) {
      EXPECT_NE(epochs[0], epochs[1]);
      EXPECT_NE(epochs[1], epochs[2]);
    }
  }
}

TEST(Order, DependsOnTheSeed) {
  for (const bool replace : {false, true}) {
    const Order a(1, 1000, replace), b(2, 1000, replace), c(1, 1000, replace);
    int same = 0;
    for (int64_t i = 0; i < 1000; ++i) {
      same += a.Sample(i) == b.Sample(i);
      EXPECT_EQ(a.Sample(i), c.Sample(i));
    }
    EXPECT_LT(same, 20);
  }
}

// Pearson's test; 99.9 % of fair draws with 63 degrees of freedom stay below 103.4.
double ChiSquare(const std::vector<int64_t>& counts, double expected) {
  double sum = 0;
  for (const int64_t n : counts) {
    sum += (static_cast<double>(n) - expected) * (static_cast<double>(n) - expected) / expected;
  }
  return sum;
}

TEST(Order, PermutationsPutEverySampleEverywhere) {
  // Where sample 5 of 64 lands, and what lands in place 9, over many epochs.
  std::vector<int64_t> place_of_5(64), at_9(64), pairs(64);
  const Order order(7, 64, false);
  for (int64_t e = 0; e < 6400; ++e) {
    int64_t before = 0;
    for (int64_t i = 0; i < 64; ++i) {
      const int64_t sample = order.Sample(e * 64 + i);
      if (sample == 5) ++place_of_5[i];
      if (i == 9) ++at_9[sample];
      if (i == 10) ++pairs[(sample - before + 64) % 64];
      before = sample;
    }
  }
  EXPECT_LT(ChiSquare(place_of_5, 100), 103.4);
  EXPECT_LT(ChiSquare(at_9, 100), 103.4);
  pairs.erase(pairs.begin());  // no sample follows itself
  EXPECT_LT(ChiSquare(pairs, 6400.0 / 63), 103.4);
}

TEST(Order, DrawsWithReplacementAreUniform) {
  const Order order(7, 64, true);
  std::vector<int64_t> counts(64);
  for (int64_t i = 0; i < 6400; ++i) ++counts[order.Sample(i)];
  EXPECT_LT(ChiSquare(counts, 100), 103.4);
  const Order large(7, (int64_t{1} << 40) + 3, true);
  int64_t most = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_GE(large.Sample(i), 0);
    ASSERT_LT(large.Sample(i), (int64_t{1} << 40) + 3);
    most = std::max(most, large.Sample(i));
  }
  EXPECT_GT(most, int64_t{1} << 39);
}

TEST(Loader, DeliversAnEpochInMicroBatches) {
  const Numbers dataset(12);
  std::vector<int32_t> seen = Train(dataset, Options(6, 2), 2);
  const Order order(1337, 12, false);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(seen[i], order.Sample(i));
  std::sort(seen.begin(), seen.end());
  for (int32_t i = 0; i < 12; ++i) EXPECT_EQ(seen[i], i);
}

TEST(Loader, NamesStepAndPlaceOfEachMicroBatch) {
  const Numbers dataset(100);
  Loader::Options options = Options(8, 2);
  options.first_sample = 4;  // the second of two ranks
  options.samples = 4;
  options.first_step = 10;
  Loader loader(dataset, options);
  const Order order(1337, 100, false);
  for (int64_t i = 0; i < 6; ++i) {
    const auto batch = loader.Next();
    ASSERT_TRUE(batch.ok());
    EXPECT_EQ(batch->step, 10 + i / 2);
    EXPECT_EQ(batch->first_sample, 4 + i % 2 * 2);
    const int64_t index = batch->step * 8 + batch->first_sample;
    EXPECT_THAT(InputsOf(*batch, 2),
                testing::ElementsAre(order.Sample(index), order.Sample(index + 1)));
    EXPECT_EQ(static_cast<const int32_t*>(batch->targets)[1], -order.Sample(index + 1));
  }
}

TEST(Loader, ResumesExactlyAtAnyStep) {
  for (const bool replace : {false, true}) {
    const Numbers dataset(17, replace);
    const std::vector<int32_t> whole = Train(dataset, Options(6, 3), 20);
    for (int64_t step = 0; step < 20; ++step) {
      Loader::Options options = Options(6, 2);  // another cut of the batch does not matter either
      options.first_step = step;
      const std::vector<int32_t> rest = Train(dataset, options, 20 - step);
      EXPECT_EQ(rest, std::vector<int32_t>(whole.begin() + step * 6, whole.end()));
    }
  }
}

TEST(Loader, RanksTogetherSeeWhatOneRankSees) {
  const Numbers dataset(50);
  const std::vector<int32_t> whole = Train(dataset, Options(6, 6), 5);
  std::vector<std::vector<int32_t>> ranks;
  for (int64_t r = 0; r < 3; ++r) {
    Loader::Options options = Options(6, 2);
    options.first_sample = 2 * r;
    options.samples = 2;
    ranks.push_back(Train(dataset, options, 5));
  }
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(whole[i], ranks[i % 6 / 2][i / 6 * 2 + i % 2]);
}

TEST(Loader, KeepsABatchUntilTheNextIsAskedFor) {
  const Numbers dataset(1000);
  Loader::Options options = Options(4, 4);
  options.prefetch = 1;
  Loader loader(dataset, options);
  const Order order(1337, 1000, false);
  for (int64_t i = 0; i < 200; ++i) {
    const auto batch = loader.Next();
    ASSERT_TRUE(batch.ok());
    for (int64_t j = 0; j < 4; ++j) ASSERT_EQ(InputsOf(*batch, 4)[j], order.Sample(i * 4 + j));
  }
}

TEST(Loader, KeepsAsManyBatchesAsAreInUse) {
  const Numbers dataset(1000);
  Loader::Options options = Options(4, 4);
  options.prefetch = 1;
  options.in_use = 3;
  int64_t allocated = 0;
  options.allocate = [&](size_t bytes) {
    allocated += static_cast<int64_t>(bytes);
    return std::make_shared<char[]>(bytes);
  };
  Loader loader(dataset, options);
  EXPECT_EQ(allocated, loader.bytes());
  const Order order(1337, 1000, false);
  std::deque<Loader::Batch> in_use;
  for (int64_t i = 0; i < 200; ++i) {
    in_use.push_back(loader.Next().value());
    if (in_use.size() > 3) in_use.pop_front();
    const int64_t first = i + 1 - static_cast<int64_t>(in_use.size());
    for (size_t b = 0; b < in_use.size(); ++b) {
      for (int64_t j = 0; j < 4; ++j) {
        ASSERT_EQ(InputsOf(in_use[b], 4)[j],
                  order.Sample((first + static_cast<int64_t>(b)) * 4 + j));
      }
    }
  }
}

TEST(Loader, RunsNoFurtherAheadThanItsRing) {
  const Numbers dataset(1000);
  Loader loader(dataset, Options(4, 4));
  EXPECT_EQ(loader.bytes(), 4 * 4 * 8);
  for (int64_t i = 1; i <= 50; ++i) {
    ASSERT_TRUE(loader.Next().ok());
    EXPECT_LE(dataset.fills(), i + 3);  // prefetch
  }
}

TEST(Loader, DeliversWhatCameBeforeAnErrorThenTheErrorForEver) {
  Numbers dataset(1000);
  dataset.fail_at = 5;
  Loader loader(dataset, Options(4, 4));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(loader.Next().ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(loader.Next().status(), absl::DataLossError("FILE: ends at byte 7"));
  }
}

TEST(Loader, DeliversTheSameWithAnyNumberOfThreads) {
  Numbers dataset(1000);
  const std::vector<int32_t> one = Train(dataset, Options(12, 6), 40);
  for (const int64_t grain : {0, 1, 4, 6, 9}) {
    dataset.set_grain(grain);
    for (const int64_t threads : {1, 2, 7}) {
      Loader::Options options = Options(12, 6);
      options.threads = threads;
      EXPECT_EQ(Train(dataset, options, 40), one) << grain << " " << threads;
    }
  }
}

TEST(Loader, NamesTheFirstFailureOfAMicroBatchWhicheverThreadIsFaster) {
  for (int i = 0; i < 20; ++i) {
    Numbers dataset(16);
    dataset.set_grain(1);
    const Order order(1337, 16, false);
    dataset.fail_on = order.Sample(16 + 5);  // also somewhere in each other epoch
    Loader::Options options = Options(4, 4);
    options.first_step = 4;
    options.threads = 4;
    Loader loader(dataset, options);
    EXPECT_TRUE(loader.Next().ok());
    for (int j = 0; j < 2; ++j) {
      EXPECT_EQ(loader.Next().status(),
                absl::DataLossError(absl::StrCat("sample ", dataset.fail_on, " in epoch 1")));
    }
  }
}

TEST(Loader, DeliversTheHeldOutSplitOnceInOrderAndPadsItsEnd) {
  for (const int64_t threads : {1, 3}) {
    Numbers dataset(10);
    dataset.set_grain(threads == 1 ? 0 : 1);
    Loader::Options options = Options(4, 4);
    options.held_out = 10;
    options.threads = threads;
    Loader loader(dataset, options);
    std::vector<int32_t> all;
    for (int i = 0; i < 3; ++i) {
      const auto batch = loader.Next();
      ASSERT_TRUE(batch.ok());
      for (const int32_t v : InputsOf(*batch, 4)) all.push_back(v);
    }
    EXPECT_THAT(all, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1));
    EXPECT_EQ(loader.Next().status().code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(Loader, DeliversTheHeldOutSplitAgainAfterARestartInTheMiddle) {
  for (const int64_t threads : {1, 3}) {
    Numbers dataset(10);
    dataset.set_grain(1);
    Loader::Options options = Options(4, 4);
    options.held_out = 4;
    options.threads = threads;
    Loader loader(dataset, options);
    const auto read = [&](int batches) {
      std::vector<int32_t> all;
      for (int i = 0; i < batches; ++i) {
        const auto batch = loader.Next();
        if (!batch.ok()) break;
        for (const int32_t v : InputsOf(*batch, 4)) all.push_back(v);
      }
      return all;
    };
    EXPECT_THAT(read(2), testing::ElementsAre(0, 1, 2, 3));
    for (int i = 0; i < 100; ++i) {
      loader.Restart(10);
      EXPECT_THAT(read(i % 3), testing::SizeIs(i % 3 * 4));
    }
    loader.Restart(10);
    EXPECT_THAT(read(4), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1));
    loader.Restart(3);
    EXPECT_THAT(read(4), testing::ElementsAre(0, 1, 2, -1));
  }
}

// Each micro-batch is a few milliseconds of work.
class Slow : public Numbers {
 public:
  Slow() : Numbers(100) {}
  absl::Status FillForTraining(uint64_t, absl::Span<const int64_t>, absl::Span<const int64_t>,
                               void*, void*) const override {
    const absl::Time end = absl::Now() + absl::Milliseconds(3);
    while (absl::Now() < end) continue;
    return absl::OkStatus();
  }
};

TEST(Loader, CountsHowLongNothingWasReady) {
  const Slow dataset;
  const absl::Time start = absl::Now();
  Loader loader(dataset, Options(4, 4));
  EXPECT_EQ(loader.waited(), absl::ZeroDuration());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(loader.Next().ok());
  EXPECT_GT(loader.waited(), absl::Milliseconds(5));
  EXPECT_LE(loader.waited(), absl::Now() - start);
}

TEST(Loader, StopsAtAnyMoment) {
  const Numbers dataset(1000);
  for (int taken = 0; taken < 20; ++taken) {
    Loader loader(dataset, Options(4, 2));
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader.Next().ok());
  }
}

}  // namespace
}  // namespace trainyard::data
