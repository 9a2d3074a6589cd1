// Points in columns and their roll-ups.

#include "storage/records/metric_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "storage/records/metric_codec.h"
#include "storage/records/metric_rollup.h"

namespace trainyard {
namespace {

constexpr MetricSplit kTrain = MetricSplit::kTrain;
constexpr MetricSplit kValidation = MetricSplit::kValidation;

// 40 training points with a name that comes and goes, a validation point after every tenth.
MetricBlock Mixed() {
  MetricBlock block{.attempt = 3};
  int64_t sequence = 5;
  for (int64_t step = 1; step <= 40; ++step) {
    MetricRecord train{step, kTrain, {{"loss", 1.0 / static_cast<double>(step)}}};
    if (step % 3 == 0) train.values["scale"] = 1024;
    block.Add(sequence++, absl::FromUnixMicros(1000 * step), train);
    if (step % 10 == 0) {
      block.Add(sequence++, absl::FromUnixMicros(1000 * step + 1),
                MetricRecord{step, kValidation, {{"loss", 2.0}, {"accuracy", 0.5}}});
      sequence += 2;  // a checkpoint and a notice
    }
  }
  return block;
}

void ExpectSameRows(const MetricBlock& a, const MetricBlock& b) {
  const std::vector<MetricRow> left = RowsOf(a);
  const std::vector<MetricRow> right = RowsOf(b);
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].sequence, right[i].sequence);
    EXPECT_EQ(left[i].attempt, right[i].attempt);
    EXPECT_EQ(left[i].time, right[i].time);
    EXPECT_EQ(left[i].point.step, right[i].point.step);
    EXPECT_EQ(left[i].point.split, right[i].point.split);
    EXPECT_EQ(left[i].point.values, right[i].point.values);
  }
}

TEST(MetricBlockTest, ABlockComesBackFromItsBytesWholeOrColumnByColumn) {
  const MetricBlock block = Mixed();
  const auto whole = DecodeBlock(EncodeBlock(block));
  ASSERT_TRUE(whole.ok()) << whole.status();
  ExpectSameRows(*whole, block);
  auto parts = DecodeIndex(EncodeIndex(block), block.size());
  ASSERT_TRUE(parts.ok()) << parts.status();
  for (const auto& [key, column] : block.columns) {
    EXPECT_EQ(DecodeColumn(EncodeColumn(block, key), key, *parts), absl::OkStatus());
  }
  ExpectSameRows(*parts, block);
}

TEST(MetricBlockTest, ARunSlicesAndJoinsAreTheSamePointsOneByOne) {
  MetricRun run{.split = kTrain, .names = {"loss", "rate"}, .values = {{3, 2, 1}, {0.1, 0.2, 0.3}}};
  for (int64_t step = 7; step < 10; ++step) {
    run.steps.push_back(step);
    run.times.push_back(absl::FromUnixMicros(step));
  }
  MetricBlock whole{.attempt = 1};
  whole.Add(11, run);
  MetricBlock single{.attempt = 1};
  for (size_t i = 0; i < 3; ++i) {
    single.Add(11 + static_cast<int64_t>(i), run.times[i], PointOf(run, i));
  }
  ExpectSameRows(whole, single);
  MetricBlock joined{.attempt = 1};
  joined.Add(11, SliceRun(run, 0, 1));
  MetricBlock rest{.attempt = 1};
  rest.Add(12, SliceRun(run, 1, 2));
  joined.Add(rest);
  ExpectSameRows(joined, whole);
  const MetricBlock block = Mixed();
  MetricBlock again = SliceBlock(block, 0, 13);
  again.attempt = block.attempt;
  again.Add(SliceBlock(block, 13, 1000));
  ExpectSameRows(again, block);
}

TEST(MetricBlockTest, DamagedBytesDoNoHarm) {
  const std::string good = EncodeBlock(Mixed());
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 20000; ++turn) {
    std::string bytes = good;
    if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    for (uint64_t i = random() % 4; i < 4 && !bytes.empty(); ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto block = DecodeBlock(bytes);
    if (!block.ok()) continue;
    EXPECT_EQ(RowsOf(*block).size(), block->size());
  }
}

// What `roll_up` must be, from the rows.
RollUp Folded(const MetricBlock& block, const MetricBlock::Key& key, int64_t width, int64_t last) {
  RollUp expected;
  for (const MetricRow& row : RowsOf(block)) {
    const auto found = row.point.values.find(key.second);
    if (row.point.split != key.first || found == row.point.values.end()) continue;
    if (row.point.step <= last) {
      expected[(row.point.step - 1) / width].Add(row.point.step, found->second);
    }
  }
  return expected;
}

TEST(MetricRollUpTest, FoldsHoldLeastMostMeanAndLastAndLeaveNanOut) {
  MetricFold fold;
  fold.Add(1, 4.0);
  fold.Add(2, 2.0);
  MetricFold later;
  later.Add(3, 6.0);
  later.Add(4, std::nan(""));
  fold.Add(later);
  EXPECT_EQ(fold.count, 4);
  EXPECT_EQ(fold.Least(), 2.0);
  EXPECT_EQ(fold.Most(), 6.0);
  EXPECT_EQ(fold.Mean(), 4.0);
  EXPECT_EQ(fold.last_step, 4);
  EXPECT_TRUE(std::isnan(fold.last));
  MetricFold nothing;
  nothing.Add(1, std::nan(""));
  EXPECT_TRUE(std::isnan(nothing.Least()));
  EXPECT_TRUE(std::isnan(nothing.Mean()));
}

TEST(MetricRollUpTest, OfAColumnItIsTheFoldOfItsRowsAndComesBackFromItsBytes) {
  const MetricBlock block = Mixed();
  for (const auto& [key, column] : block.columns) {
    for (const int64_t last : {int64_t{40}, int64_t{17}}) {
      RollUp roll_up;
      FoldColumn(block, column, 10, last, roll_up);
      const RollUp expected = Folded(block, key, 10, last);
      ASSERT_EQ(roll_up.size(), expected.size());
      const auto back = DecodeRollUp(EncodeRollUp(roll_up));
      ASSERT_TRUE(back.ok()) << back.status();
      for (const auto& [bucket, fold] : expected) {
        for (const RollUp& made : {roll_up, *back}) {
          EXPECT_EQ(made.at(bucket).count, fold.count);
          EXPECT_EQ(made.at(bucket).min, fold.min);
          EXPECT_EQ(made.at(bucket).max, fold.max);
          EXPECT_EQ(made.at(bucket).sum, fold.sum);
          EXPECT_EQ(made.at(bucket).last, fold.last);
          EXPECT_EQ(made.at(bucket).last_step, fold.last_step);
        }
      }
    }
  }
}

TEST(MetricRollUpTest, DamagedBytesDoNoHarm) {
  RollUp roll_up;
  const MetricBlock block = Mixed();
  FoldColumn(block, block.columns.at({kTrain, "loss"}), 10, 40, roll_up);
  const std::string good = EncodeRollUp(roll_up);
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 20000; ++turn) {
    std::string bytes = good;
    if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    for (uint64_t i = random() % 4; i < 4 && !bytes.empty(); ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto back = DecodeRollUp(bytes);
    EXPECT_LE(back.ok() ? back->size() : 0, kMostBlockPoints);
  }
}

TEST(MetricRollUpTest, BucketsAreWholeMultiplesOfALevelAndNoMoreThanAsked) {
  const auto expect = [](int64_t steps, int64_t buckets, int level, int64_t width) {
    const BucketPlan plan = PlanBuckets(steps, buckets);
    EXPECT_EQ(plan.level, level) << steps << " into " << buckets;
    EXPECT_EQ(plan.width, width) << steps << " into " << buckets;
    EXPECT_LE((steps + plan.width - 1) / plan.width, buckets);
  };
  expect(1000000, 1000, 3, 1000);
  expect(1000001, 1000, 3, 2000);
  expect(500, 1000, 0, 1);
  expect(1500, 1000, 0, 2);
  expect(9000, 1000, 0, 9);
  expect(10000, 1000, 1, 10);
  expect(999999999999, 10, kHighestLevel, 100000000000);
}

}  // namespace
}  // namespace trainyard
