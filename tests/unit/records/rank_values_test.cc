#include "storage/records/rank_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(RankValues, WhatMakesSenseIsKept) {
  std::map<std::string, double> values = {{"loss", kNaN},
                                          {"ranks.count", 2},
                                          {"ranks.slowest", 1},
                                          {"ranks.slowest_ratio", 1.7},
                                          {"ranks.wait_ms.max_rank", 0},
                                          {"ranks.of_a_newer_engine", 5},
                                          {"rank.1.wait_ms", 0.5},
                                          {"ranking", -1}};
  const auto before = values;
  RefuseRankValues(2, values);
  EXPECT_EQ(values.size(), before.size());
  EXPECT_EQ(values.count(kRefusedRankValues), 0u);
}

TEST(RankValues, WhatCannotBeTrueIsRefusedAndCounted) {
  const std::pair<const char*, double> wrong[] = {{"ranks.count", 1e18},
                                                  {"ranks.count", 3},
                                                  {"ranks.slowest", 2},
                                                  {"ranks.slowest", 0.5},
                                                  {"ranks.slowest", -1},
                                                  {"ranks.compute_ms.max_rank", 2},
                                                  {"ranks.compute_ms.max", kNaN},
                                                  {"ranks.wait_ms.min", -0.1},
                                                  {"ranks.slowest_ratio", kInfinity},
                                                  {"ranks.refused", 1},
                                                  {"rank.2.compute_ms", 1},
                                                  {"rank.-1.compute_ms", 1},
                                                  {"rank.01.compute_ms", 1},
                                                  {"rank.+1.compute_ms", 1},
                                                  {"rank.1", 1},
                                                  {"rank.99999999999.wait_ms", 1},
                                                  {"rank..wait_ms", 1},
                                                  {"rank.1.wait_ms", kNaN}};
  for (const auto& [name, value] : wrong) {
    std::map<std::string, double> values = {{"loss", 2}, {name, value}};
    RefuseRankValues(2, values);
    EXPECT_THAT(values, ElementsAre(Pair("loss", 2), Pair(kRefusedRankValues, 1))) << name;
  }
}

TEST(RankValues, ARunLosesAllValuesOfANameThatIsWrongOnce) {
  MetricRun run{.steps = {1, 2},
                .times = {absl::UnixEpoch(), absl::UnixEpoch()},
                .names = {"loss", "rank.7.wait_ms", "ranks.count", "ranks.slowest", "samples"},
                .values = {{3, 2}, {1, 1}, {2, 2}, {0, kNaN}, {8, 8}}};
  RefuseRankValues(2, run);
  EXPECT_THAT(run.names, ElementsAre("loss", "ranks.count", "ranks.refused", "samples"));
  EXPECT_THAT(run.values, ElementsAre(ElementsAre(3, 2), ElementsAre(2, 2), ElementsAre(2, 2),
                                      ElementsAre(8, 8)));
  EXPECT_THAT(run.steps, ElementsAre(1, 2));
  EXPECT_EQ(run.times.size(), 2u);
}

}  // namespace
}  // namespace trainyard
