// Metrics in PostgreSQL: heads and chunks as tables, and the rows of servers before.

#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "storage/postgres/postgres.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

class ChunkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    database_ = NewDatabase();
    auto stores = postgres::Open(SharedPostgres().Conninfo(database_));
    ASSERT_OK(stores.status());
    stores_ = *std::move(stores);
    JobRecord job;
    job.project = "default";
    job.job_id = "a";
    ASSERT_OK(stores_->jobs().Submit(job).status());
    ASSERT_OK(stores_->fleet()
                  .RegisterNode({.name = "n1",
                                 .incarnation = "i1",
                                 .address = "localhost",
                                 .slots = {{.index = 0, .device = "CPU", .memory_bytes = 1}}},
                                absl::Hours(1))
                  .status());
    Place();
  }

  // Places the job and lets its rank report where it goes on from.
  void Place() {
    const auto lease = stores_->scheduler().Lead("leader", absl::Hours(1), std::nullopt);
    ASSERT_OK(lease.status());
    const auto job = stores_->jobs().Get({"default", "a"});
    ASSERT_OK(job.status());
    Placement placement{.job_uid = job->uid, .job_version = job->version};
    placement.ranks.push_back({.node = "n1", .slots = {0}});
    const auto placed =
        stores_->scheduler().Apply(lease->epoch, {.placements = {std::move(placement)}});
    ASSERT_OK(placed.status());
    ASSERT_EQ(*placed, 1);
    rank_ = {job->uid, job->attempt + 1, 0};
    sequence_ = 0;
    Report(RankRestored{0});
  }

  void Report(decltype(RankEventRecord::what) what) {
    RankEventRecord event{
        .sequence = sequence_ + 1, .time = absl::UnixEpoch(), .what = std::move(what)};
    sequence_ = LastSequenceOf(event);
    const auto stored = stores_->fleet().AppendEvents({"n1", rank_, {event}});
    ASSERT_OK(stored.status());
    ASSERT_EQ(stored->acked_sequence, sequence_);
  }

  void ReportSteps(int64_t from, int64_t to) {
    MetricRun run{.names = {"loss"}, .values = {{}}};
    for (int64_t step = from; step <= to; ++step) {
      run.steps.push_back(step);
      run.times.push_back(absl::UnixEpoch());
      run.values[0].push_back(static_cast<double>(step));
    }
    Report(run);
  }

  // Whether steps 1 to `steps` are the series, each once, with its number as its loss.
  void ExpectSteps(int64_t steps) {
    const auto rows =
        stores_->jobs().ReadMetrics(rank_.job_uid, {.limit = static_cast<int>(steps) + 10});
    ASSERT_OK(rows.status());
    ASSERT_EQ(static_cast<int64_t>(rows->size()), steps);
    for (int64_t step = 1; step <= steps; ++step) {
      ASSERT_EQ((*rows)[step - 1].point.step, step);
      ASSERT_EQ((*rows)[step - 1].point.values.at("loss"), static_cast<double>(step));
    }
  }

  std::string Sql(const std::string& sql) {
    const auto answer = SharedPostgres().Query(database_, sql);
    EXPECT_OK(answer.status());
    return answer.value_or("");
  }

  std::string database_;
  std::unique_ptr<Stores> stores_;
  RankId rank_;
  int64_t sequence_ = 0;
};

constexpr char kChunksByLevel[] =
    "SELECT string_agg(level || ':' || n, ' ' ORDER BY level) FROM (SELECT level, "
    "count(DISTINCT first_sequence) AS n FROM metric_chunks GROUP BY level) AS t";

TEST_F(ChunkTest, TheReportThatCompletesAThousandPointsMakesAChunkOfTheHeads) {
  for (int64_t step = 1; step <= 1000; step += 100) ReportSteps(step, step + 99);
  EXPECT_EQ(Sql("SELECT count(*), max(pending) FROM metric_heads"), "10|1000");
  EXPECT_EQ(Sql("SELECT count(*) FROM metric_chunks"), "0");
  ReportSteps(1001, 1100);
  EXPECT_EQ(Sql("SELECT count(*) FROM metric_heads"), "0");
  EXPECT_EQ(Sql(kChunksByLevel), "0:1 1:1");
  ExpectSteps(1100);
}

TEST_F(ChunkTest, TenChunksOfALevelBecomeOneOfTheNext) {
  for (int64_t step = 1; step <= 112 * 1024; step += 16 * 1024) {
    ReportSteps(step, step + 16 * 1024 - 1);
  }
  const std::string levels = Sql(kChunksByLevel);
  EXPECT_EQ(levels.substr(0, 12), "0:112 1:112 ");
  // A report of sixteen chunks rolls them up at once.
  EXPECT_EQ(levels, "0:112 1:112 2:7");
  EXPECT_EQ(Sql("SELECT max(last_sequence) FROM metric_chunks WHERE level = 2"),
            Sql("SELECT max(last_sequence) FROM metric_chunks WHERE level = 0"));
  const auto buckets = stores_->jobs().ReadMetricBuckets(rank_.job_uid, {.buckets = 2});
  ASSERT_OK(buckets.status());
  ASSERT_EQ(buckets->size(), 2U);
  EXPECT_EQ(buckets->front().fold.count + buckets->back().fold.count, 112 * 1024);
}

TEST_F(ChunkTest, AnEndedJobLeavesNoHeadsAndADeletedOneNothing) {
  ReportSteps(1, 500);
  Report(RankFinished{false, 500, "it is enough"});
  Report(RankExited{0, 0, false, ""});
  EXPECT_EQ(Sql("SELECT count(*) FROM metric_heads"), "0");
  EXPECT_EQ(Sql(kChunksByLevel), "0:1 1:1");
  ExpectSteps(500);
  EXPECT_OK(stores_->jobs().Delete({"default", "a"}, 0));
  EXPECT_EQ(Sql("SELECT count(*) FROM metric_chunks"), "0");
}

TEST_F(ChunkTest, PointsLieInTheMonthOfTheirJobsCreation) {
  Sql("UPDATE job_specs SET create_time = '2031-05-31 23:59:59+00'");
  ReportSteps(1, 10);
  ReportSteps(11, 2000);
  EXPECT_EQ(Sql("SELECT DISTINCT month FROM metric_chunks"), "2031-05-01");
  ExpectSteps(2000);
}

// Rows of `metrics`, as a server before wrote them: they are read along, and not taken twice.
TEST_F(ChunkTest, RowsOfAServerBeforeAreReadAlong) {
  Sql(absl::StrCat(
      "INSERT INTO metrics SELECT uid, feed_sequence + i, now(), attempt, i, 0, '{loss}', ARRAY[i] "
      "FROM jobs, generate_series(1, 700) AS i; UPDATE jobs SET feed_sequence = feed_sequence + "
      "700"));
  ReportSteps(691, 1500);  // some of which are there
  ReportSteps(1501, 3000);
  ExpectSteps(3000);
  const auto feed = stores_->jobs().ReadFeed(rank_.job_uid, 0, 5000);
  ASSERT_OK(feed.status());
  for (size_t i = 0; i < feed->size(); ++i) {
    ASSERT_EQ((*feed)[i].sequence, static_cast<int64_t>(i) + 1);
  }
  EXPECT_EQ(feed->size(), 3000U + 4U);  // with its submission, its attempt and two states
  const auto buckets = stores_->jobs().ReadMetricBuckets(rank_.job_uid, {.buckets = 300});
  ASSERT_OK(buckets.status());
  ASSERT_EQ(buckets->size(), 300U);
  for (const MetricBucket& bucket : *buckets) {
    EXPECT_EQ(bucket.fold.count, 10);
    EXPECT_EQ(bucket.fold.max, static_cast<double>(bucket.last_step));
  }
}

TEST_F(ChunkTest, WhatIsDamagedIsAnErrorAndNeverACrash) {
  ReportSteps(1, 2000);
  Sql("UPDATE metric_chunks SET bytes = overlay(bytes PLACING '\\xffffffffff' FROM 3) "
      "WHERE level = 0 AND split = -1");
  EXPECT_EQ(stores_->jobs().ReadMetrics(rank_.job_uid, {}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(stores_->jobs().ReadFeed(rank_.job_uid, 0, 10).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace trainyard::testing
