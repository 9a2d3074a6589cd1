#include "executor/engine/rank_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "executor/engine/gang.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/in_threads.h"
#include "tests/unit/engine/slow_device.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<RankTimes> Computing(const std::vector<double>& compute_ms) {
  std::vector<RankTimes> ranks;
  for (const double ms : compute_ms) {
    ranks.push_back({.compute_ms = ms, .wait_ms = 50 - ms, .memory_bytes = 1000 + ms});
  }
  return ranks;
}

TEST(StepTimes, AreMeansSinceTheyWereTaken) {
  StepTimes times;
  times.Add(absl::Milliseconds(10), absl::Milliseconds(4));
  times.Add(absl::Milliseconds(20), absl::Milliseconds(6));
  EXPECT_EQ(times.steps(), 2);
  const RankTimes mean = times.Take();
  EXPECT_DOUBLE_EQ(mean.compute_ms, 10);
  EXPECT_DOUBLE_EQ(mean.wait_ms, 5);
  EXPECT_EQ(times.steps(), 0);
  EXPECT_DOUBLE_EQ(times.Take().compute_ms, 0);
}

TEST(FindSlowest, ComparesWithTheMedianRank) {
  const SlowestRank slowest = FindSlowest(Computing({10, 30, 12, 11}), {4});
  EXPECT_EQ(slowest.rank, 1);
  EXPECT_DOUBLE_EQ(slowest.ratio, 30.0 / 11);
  EXPECT_DOUBLE_EQ(slowest.excess_ms, 19);
  EXPECT_DOUBLE_EQ(FindSlowest(Computing({10, 30}), {2}).ratio, 3) << "of two the lower one";
  EXPECT_DOUBLE_EQ(FindSlowest(Computing({0, 0}), {2}).ratio, 1);
}

TEST(FindSlowest, ARankThatHostsMoreMayTakeLonger) {
  // Rank 0 hosts two of eight logical ranks, the others three each.
  const SlowestRank slowest = FindSlowest(Computing({40, 30, 30}), {8});
  EXPECT_EQ(slowest.rank, 0);
  EXPECT_DOUBLE_EQ(slowest.ratio, 2);
  EXPECT_DOUBLE_EQ(slowest.excess_ms, 20);
  EXPECT_DOUBLE_EQ(FindSlowest(Computing({20, 30, 30}), {8}).ratio, 1);
}

TEST(RankMetrics, NamesExtremesAndFewRanksOneByOne) {
  const std::map<std::string, double> values = RankMetrics(Computing({10, 30, 12}), {3});
  EXPECT_EQ(values.at("ranks.count"), 3);
  EXPECT_EQ(values.at("ranks.compute_ms.min"), 10);
  EXPECT_EQ(values.at("ranks.compute_ms.median"), 12);
  EXPECT_EQ(values.at("ranks.compute_ms.max"), 30);
  EXPECT_EQ(values.at("ranks.compute_ms.max_rank"), 1);
  EXPECT_EQ(values.at("ranks.wait_ms.max_rank"), 0);
  EXPECT_EQ(values.at("ranks.slowest"), 1);
  EXPECT_EQ(values.at("ranks.slowest_ratio"), 2.5);
  EXPECT_EQ(values.at("rank.2.compute_ms"), 12);
  EXPECT_EQ(values.at("rank.1.wait_ms"), 20);
  EXPECT_EQ(values.at("rank.0.memory_bytes"), 1010);
  EXPECT_TRUE(RankMetrics({}, {1}).empty());
}

TEST(RankMetrics, AreFewHoweverManyRanks) {
  EXPECT_THAT(RankMetrics(Computing(std::vector<double>(8, 10)), {8}), SizeIs(40));
  std::vector<double> many(1024, 10);
  many[777] = 40;
  const std::map<std::string, double> values = RankMetrics(Computing(many), {1024});
  EXPECT_THAT(values, SizeIs(16));
  EXPECT_EQ(values.at("ranks.slowest"), 777);
  EXPECT_EQ(values.at("ranks.slowest_ratio"), 4);
}

TEST(StragglerWatch, TellsOnceOfARankThatIsSlowForLong) {
  StragglerWatch watch;
  const std::vector<RankTimes> slow = Computing({10, 30, 12});
  EXPECT_EQ(watch.Look(1000, slow, {3}), "") << "kernels were prepared";
  EXPECT_EQ(watch.Look(24, slow, {3}), "");
  EXPECT_EQ(watch.Look(24, slow, {3}), "");
  EXPECT_EQ(watch.Look(2, slow, {3}),
            "rank 1 is a straggler: for 50 steps it has computed 2.50 times as long as the median "
            "rank for as much work (30.0 ms of a step of 50.0 ms), and the other ranks wait for "
            "it");
  for (int i = 0; i < 100; ++i) EXPECT_EQ(watch.Look(100, slow, {3}), "");
}

TEST(StragglerWatch, IsSilentAboutWhatPassesOrCostsLittle) {
  StragglerWatch watch;
  const std::vector<RankTimes> even = Computing({10, 14, 12});
  const std::vector<RankTimes> slow = Computing({10, 30, 12}), other = Computing({10, 12, 30});
  const std::vector<RankTimes> idle = Computing({1, 4, 1});  // of 50 ms: the links are slow
  for (int i = 0; i < 20; ++i) {
    for (const auto* ranks : {&slow, &slow, &even, &slow, &other, &slow, &idle, &idle, &idle}) {
      EXPECT_EQ(watch.Look(30, *ranks, {3}), "");
    }
  }
}

TEST(Gang, RankZeroIsToldWhatTheOthersHave) {
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    const std::vector<int32_t> mine = {gang.rank() + 1, gang.rank() * 10};
    std::vector<int32_t> all(gang.leads() ? 6 : 0);
    ASSERT_TRUE(gang.ToLeader(Sent(absl::MakeSpan(mine)), Received(absl::MakeSpan(all))).ok());
    if (gang.leads()) {
      EXPECT_EQ(all, (std::vector<int32_t>{1, 0, 2, 10, 3, 20}));
    }
    EXPECT_EQ(*gang.AnyOf(gang.leads() ? 2 : gang.rank() == 2 ? 1 : 0), 3);
  });
}

struct GangRun {
  std::vector<RecordingObserver::Metrics> metrics;
  std::vector<std::string> warnings;
};

// Trains on three ranks, of which rank 1 pauses before each kernel; what rank 0 reports.
GangRun TrainWithSlowRank(absl::Duration pause, int64_t steps) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), steps);
  spec.mutable_training()->set_batch_size(12);
  spec.mutable_parallel()->set_logical_ranks(3);
  GangRun run;
  InThreads(3, [&](Communicator& communicator) {
    RecordingObserver observer;
    SlowDevice device(communicator.rank() == 1 ? pause : absl::ZeroDuration());
    const auto result =
        RunOn(device, spec, folder.path() + "/out", observer, std::nullopt, 1, &communicator);
    ASSERT_TRUE(result.ok()) << result.status();
    if (communicator.rank() != 0) {
      EXPECT_TRUE(observer.metrics.empty() && observer.warnings.empty());
      return;
    }
    run = {.metrics = observer.metrics, .warnings = observer.warnings};
  });
  return run;
}

TEST(RankTimes, ASlowRankIsNamedWithItsRatio) {
  const GangRun run = TrainWithSlowRank(absl::Microseconds(250), 110);
  std::vector<std::map<std::string, double>> reports;
  for (const auto& point : run.metrics) {
    if (point.values.count("ranks.count") > 0) reports.push_back(point.values);
  }
  ASSERT_GE(reports.size(), 4u) << "of " << run.metrics.size() << " points";
  EXPECT_LT(reports.size(), run.metrics.size() / 2) << "steps are shorter than reports are apart";
  EXPECT_EQ(run.metrics.front().values.count("ranks.count"), 1u);
  const std::map<std::string, double>& last = reports.back();
  EXPECT_EQ(last.at("ranks.count"), 3);
  EXPECT_EQ(last.at("ranks.slowest"), 1);
  EXPECT_GT(last.at("ranks.slowest_ratio"), 1.5);
  EXPECT_EQ(last.at("ranks.compute_ms.max_rank"), 1);
  EXPECT_GT(last.at("rank.0.wait_ms"), last.at("rank.1.wait_ms"));
  EXPECT_GT(last.at("rank.2.memory_bytes"), 0);
  EXPECT_GT(last.at("ranks.planned_bytes.max"), 0);
  ASSERT_THAT(run.warnings, SizeIs(1));
  EXPECT_THAT(run.warnings[0], HasSubstr("rank 1 is a straggler: for "));
}

TEST(RankTimes, ARankThatIsAloneReportsNone) {
  const TempFolder folder;
  RecordingObserver observer;
  ASSERT_TRUE(RunOnCpu(SmallGpt(WriteText(folder.path()), 3), folder.path(), observer).ok());
  for (const auto& [name, value] : observer.metrics[0].values) {
    EXPECT_NE(name.substr(0, 4), "rank");
  }
}

}  // namespace
}  // namespace trainyard::engine
