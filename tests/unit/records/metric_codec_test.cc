// Columns of metrics as bytes: what goes in comes out, bit by bit, and damaged bytes do no harm.

#include "storage/records/metric_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace trainyard {
namespace {

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

void ExpectIntegersComeBack(const std::vector<int64_t>& values) {
  const auto back = DecodeIntegers(EncodeIntegers(values), values.size());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, values);
}

void ExpectDoublesComeBack(const std::vector<double>& values) {
  const auto back = DecodeDoubles(EncodeDoubles(values), values.size());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(SameBits(*back, values));
}

TEST(MetricCodecTest, IntegersComeBack) {
  ExpectIntegersComeBack({});
  ExpectIntegersComeBack({0});
  ExpectIntegersComeBack({1, 2, 3, 4, 5, 100, 101, 102});
  ExpectIntegersComeBack({INT64_MAX, INT64_MIN, 0, INT64_MIN, INT64_MAX});
  std::mt19937_64 random(7);
  std::vector<int64_t> any(1000);
  for (int64_t& value : any) value = static_cast<int64_t>(random());
  ExpectIntegersComeBack(any);
}

TEST(MetricCodecTest, DoublesComeBackWithTheirBits) {
  const double inf = std::numeric_limits<double>::infinity();
  ExpectDoublesComeBack({});
  ExpectDoublesComeBack({0.0});
  ExpectDoublesComeBack(
      {0.0, -0.0, inf, -inf, std::nan(""), std::nan("7"), 5e-324, 1.7e308, 1.0, 1.0});
  std::mt19937_64 random(7);
  std::vector<double> any(1000);
  for (double& value : any) {
    const uint64_t bits = random();
    std::memcpy(&value, &bits, sizeof(value));
  }
  ExpectDoublesComeBack(any);
}

TEST(MetricCodecTest, EvenStepsTakeNextToNoRoomAndLossesLessThanTheyAre) {
  std::vector<int64_t> steps;
  std::vector<double> losses;
  std::mt19937_64 random(7);
  std::normal_distribution<float> noise(0, 0.05F);
  for (int i = 1; i <= 1000; ++i) {
    steps.push_back(i);
    losses.push_back(2.0F / std::sqrt(static_cast<float>(i)) + 1 + noise(random));
  }
  EXPECT_LT(EncodeIntegers(steps).size(), 8U);
  EXPECT_LT(EncodeDoubles(losses).size(), 5000U);  // floats that were widened
}

TEST(MetricCodecTest, DamagedBytesAreAnErrorOrOtherValuesAndNeverMore) {
  std::vector<int64_t> steps{1, 2, 3, 50, 51, 52, 52, 90};
  std::vector<double> values{1.0, 1.5, 1.25, 3.0, 3.0, -7.0, 0.1, 1e9};
  const std::string integers = EncodeIntegers(steps);
  const std::string doubles = EncodeDoubles(values);
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 20000; ++turn) {
    std::string bytes = turn % 2 == 0 ? integers : doubles;
    const size_t cut = random() % 4 == 0 ? random() % (bytes.size() + 1) : bytes.size();
    bytes.resize(cut);
    for (char& byte : bytes) {
      if (random() % 6 == 0) byte = static_cast<char>(random());
    }
    const size_t count = random() % 16;
    const auto a = DecodeIntegers(bytes, count);
    const auto b = DecodeDoubles(bytes, count);
    EXPECT_EQ(a.ok() ? a->size() : count, count);
    EXPECT_EQ(b.ok() ? b->size() : count, count);
  }
}

TEST(MetricCodecTest, WhatIsTooShortTooLongOrTooManyIsRefused) {
  const std::string doubles = EncodeDoubles({1.0, 2.0, 3.0});
  EXPECT_TRUE(absl::IsDataLoss(DecodeDoubles(doubles.substr(0, 8), 3).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeDoubles(doubles + "xx", 3).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeDoubles(doubles, size_t{1} << 40).status()));
  const std::string integers = EncodeIntegers({1, 2, 3});
  EXPECT_TRUE(absl::IsDataLoss(DecodeIntegers(integers, 2).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeIntegers(integers, 4).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeIntegers(integers + "x", 3).status()));
  // A run of zeros that claims more than there may be.
  std::string many;
  PutVarint(0, many);
  PutVarint(uint64_t{1} << 60, many);
  EXPECT_TRUE(absl::IsDataLoss(DecodeIntegers(many, 1000).status()));
}

}  // namespace
}  // namespace trainyard
