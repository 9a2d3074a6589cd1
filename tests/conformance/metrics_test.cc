// Metrics in columns: points and runs, long series, restarts, buckets. What a store answers is held
// against the points that were reported.

#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "storage/records/metric_rollup.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

constexpr MetricSplit kTrain = MetricSplit::kTrain;
constexpr MetricSplit kValidation = MetricSplit::kValidation;

double LossAt(int64_t attempt, int64_t step) {
  return static_cast<double>(attempt) + 1.0 / static_cast<double>(step);
}

class MetricSuite : public StoreSuite {
 protected:
  // A run of training steps `from` to `to`, as an agent sends it.
  static MetricRun RunOf(int64_t attempt, int64_t from, int64_t to) {
    MetricRun run{.split = kTrain, .names = {"loss", "rate"}, .values = {{}, {}}};
    for (int64_t step = from; step <= to; ++step) {
      run.steps.push_back(step);
      run.times.push_back(absl::UnixEpoch() + absl::Microseconds(step));
      run.values[0].push_back(LossAt(attempt, step));
      run.values[1].push_back(0.5);
    }
    return run;
  }

  // Reports steps `from` to `to` of the job's attempt: in runs of `size`, with a validation point
  // after every hundredth step; size 0: point by point.
  void Report(const JobRecord& job, int64_t from, int64_t to, int64_t size) {
    for (int64_t step = from; step <= to;) {
      std::vector<RankEventRecord> events;
      for (int64_t until = std::min(to, step + 399); step <= until;) {
        if (size == 0) {
          Add(events, job,
              MetricRecord{step, kTrain, {{"loss", LossAt(job.attempt, step)}, {"rate", 0.5}}});
          ++step;
        } else {
          const int64_t hundred = (step + 99) / 100 * 100;
          const int64_t last = std::min({until, hundred, step + size - 1});
          Add(events, job, RunOf(job.attempt, step, last));
          step = last + 1;
        }
        if ((step - 1) % 100 == 0) {
          Add(events, job, MetricRecord{step - 1, kValidation, {{"loss", 7.0}}});
        }
      }
      const auto stored = fleet().AppendEvents({"n1", {job.uid, job.attempt, 0}, events});
      ASSERT_OK(stored.status());
      ASSERT_FALSE(stored->fenced);
      EXPECT_EQ(stored->acked_sequence, LastSequenceOf(events.back()));
      last_ = events;
    }
  }

  void Add(std::vector<RankEventRecord>& events, const JobRecord& job,
           decltype(RankEventRecord::what) what) {
    int64_t& sequence = sequences_[{job.uid, job.attempt}];
    events.push_back(
        {.sequence = sequence + 1, .time = absl::UnixEpoch(), .what = std::move(what)});
    sequence = LastSequenceOf(events.back());
  }

  JobRecord Begin(const std::string& job_id) {
    Register("n1");
    Lead();
    Submit(job_id);
    return Restart(job_id, 0);
  }

  // Places the job anew; it goes on from its newest checkpoint.
  JobRecord Restart(const std::string& job_id, int64_t restored) {
    EXPECT_EQ(Place(Get(job_id), {"n1"}), 1);
    const JobRecord job = Get(job_id);
    Tell(job, RankRestored{restored});
    return job;
  }

  void Tell(const JobRecord& job, decltype(RankEventRecord::what) what) {
    std::vector<RankEventRecord> events;
    Add(events, job, std::move(what));
    EXPECT_OK(fleet().AppendEvents({"n1", {job.uid, job.attempt, 0}, events}).status());
  }

  // Saves, suspends and leaves, so that the job is queued again.
  void SaveAt(const JobRecord& job, int64_t step) {
    CheckpointWritten written;
    written.checkpoint.step = step;
    written.checkpoint.uri = absl::StrCat("file:///c/", step);
    Tell(job, written);
  }
  void Lose(const JobRecord& job) {
    Tell(job, FailureRecord{"DEVICE", "it broke", true});
    Tell(job, RankExited{1, 0, false, ""});
    backend_->Pass(absl::Hours(1));
  }

  std::vector<MetricRow> All(const JobRecord& job, JobStore::MetricQuery query) {
    std::vector<MetricRow> rows;
    query.limit = 700;
    for (;;) {
      const auto page = jobs().ReadMetrics(job.uid, query);
      EXPECT_OK(page.status());
      if (!page.ok() || page->empty()) return rows;
      rows.insert(rows.end(), page->begin(), page->end());
      query.after_step = rows.back().point.step;
      query.after_split = rows.back().point.split;
      query.after_attempt = rows.back().attempt;
    }
  }

  // The buckets are the folds of the series as ReadMetrics gives it.
  void ExpectBucketsOfSeries(const JobRecord& job, MetricBucketQuery query) {
    const auto buckets = jobs().ReadMetricBuckets(job.uid, query);
    ASSERT_OK(buckets.status());
    std::map<std::tuple<MetricSplit, std::string, int64_t>, MetricFold> expected;
    ASSERT_FALSE(buckets->empty());
    const int64_t width = buckets->front().last_step - buckets->front().first_step + 1;
    const int64_t from = (std::max<int64_t>(query.from_step, 1) - 1) / width * width + 1;
    int64_t to = INT64_MAX;
    if (query.to_step < INT64_MAX) to = ((query.to_step - 1) / width + 1) * width;
    for (const MetricRow& row : All(job, {.train = query.train, .validation = query.validation})) {
      if (row.point.step < from || row.point.step > to) continue;
      for (const auto& [name, value] : row.point.values) {
        if (!query.Wants(row.point.split, name)) continue;
        expected[{row.point.split, name, (row.point.step - 1) / width * width + 1}].Add(
            row.point.step, value);
      }
    }
    ASSERT_EQ(buckets->size(), expected.size()) << "width " << width;
    size_t i = 0;
    for (const auto& [key, fold] : expected) {
      const MetricBucket& bucket = (*buckets)[i++];
      EXPECT_EQ(std::make_tuple(bucket.split, bucket.name, bucket.first_step), key);
      EXPECT_EQ(bucket.fold.count, fold.count) << bucket.name << " " << bucket.first_step;
      EXPECT_EQ(bucket.fold.min, fold.min);
      EXPECT_EQ(bucket.fold.max, fold.max);
      EXPECT_NEAR(bucket.fold.sum, fold.sum, 1e-9 * std::abs(fold.sum));
      EXPECT_EQ(bucket.fold.last, fold.last);
      EXPECT_EQ(bucket.fold.last_step, fold.last_step);
    }
  }

  void ExpectSeries(const JobRecord& job, int64_t steps,
                    const std::map<int64_t, int64_t>& attempts) {
    const std::vector<MetricRow> rows = All(job, {.validation = false});
    ASSERT_EQ(static_cast<int64_t>(rows.size()), steps);
    for (int64_t step = 1; step <= steps; ++step) {
      const MetricRow& row = rows[static_cast<size_t>(step - 1)];
      const int64_t attempt = std::prev(attempts.upper_bound(step))->second;
      ASSERT_EQ(row.point.step, step);
      ASSERT_EQ(row.attempt, attempt) << step;
      ASSERT_EQ(row.point.values.at("loss"), LossAt(attempt, step)) << step;
      ASSERT_EQ(row.point.values.at("rate"), 0.5);
    }
  }

  std::map<std::pair<std::string, int64_t>, int64_t> sequences_;  // of events, by job and attempt
  std::vector<RankEventRecord> last_;
};

TEST_P(MetricSuite, ALongSeriesComesBackPointByPointInFeedAndSeries) {
  const JobRecord job = Begin("long");
  Report(job, 1, 2500, 64);
  Report(job, 2501, 2700, 0);
  Report(job, 2701, 2710, 3);
  ExpectSeries(job, 2710, {{1, 1}});
  ExpectGaplessFeed(job.uid);
  EXPECT_EQ(All(job, {.train = false}).size(), 27U);
  const auto middle = jobs().ReadMetrics(job.uid, {.from_step = 2000, .to_step = 2005});
  ASSERT_OK(middle.status());
  EXPECT_EQ(middle->size(), 7U);  // with the validation of step 2000
  const auto piece = jobs().ReadFeed(job.uid, 1500, 10);
  ASSERT_OK(piece.status());
  ASSERT_EQ(piece->size(), 10U);
  EXPECT_EQ(piece->front().sequence, 1501);
}

TEST_P(MetricSuite, AReplayedReportIsStoredOnceAlsoWhereItsBeginningIsKnown) {
  const JobRecord job = Begin("replay");
  Report(job, 1, 1500, 50);
  const std::vector<RankEventRecord> again = last_;
  for (int turn = 0; turn < 2; ++turn) {
    const auto stored = fleet().AppendEvents({"n1", {job.uid, 1, 0}, again});
    ASSERT_OK(stored.status());
    EXPECT_EQ(stored->acked_sequence, LastSequenceOf(again.back()));
  }
  // The agent cut its batches anew: a run whose first half is stored.
  const int64_t known = LastSequenceOf(again.back());
  std::vector<RankEventRecord> overlap;
  overlap.push_back(
      {.sequence = known - 9, .time = absl::UnixEpoch(), .what = RunOf(1, 1491, 1510)});
  const auto stored = fleet().AppendEvents({"n1", {job.uid, 1, 0}, overlap});
  ASSERT_OK(stored.status());
  EXPECT_EQ(stored->acked_sequence, known + 10);
  EXPECT_EQ(All(job, {.validation = false}).size(), 1510U);
  ExpectGaplessFeed(job.uid);
}

TEST_P(MetricSuite, AGapBeforeARunIsRefusedAndNothingOfItIsStored) {
  const JobRecord job = Begin("gap");
  Report(job, 1, 10, 10);
  std::vector<RankEventRecord> late;
  late.push_back({.sequence = LastSequenceOf(last_.back()) + 2,
                  .time = absl::UnixEpoch(),
                  .what = RunOf(1, 12, 20)});
  EXPECT_EQ(fleet().AppendEvents({"n1", {job.uid, 1, 0}, late}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(All(job, {}).size(), 10U);
}

TEST_P(MetricSuite, AfterARestartWhatTheOlderAttemptSaidPastItIsKeptApart) {
  JobRecord job = Begin("restarts");
  Report(job, 1, 2340, 90);
  SaveAt(job, 1717);
  Lose(job);
  job = Restart("restarts", 1717);
  Report(job, 1718, 1800, 7);
  Lose(job);
  job = Restart("restarts", 1717);
  Report(job, 1718, 4000, 500);
  ExpectSeries(job, 4000, {{1, 1}, {1718, 3}});
  EXPECT_EQ(All(job, {.validation = false, .include_superseded = true}).size(),
            static_cast<size_t>(2340 + 83 + 2283));
  for (const MetricRow& row : All(job, {.validation = false, .include_superseded = true})) {
    EXPECT_EQ(row.superseded, row.attempt < 3 && row.point.step > 1717);
  }
  ExpectGaplessFeed(job.uid);
  for (const int64_t buckets : {10, 39, 100, 400, 1000, 100000}) {
    ExpectBucketsOfSeries(job, {.buckets = buckets});
  }
  ExpectBucketsOfSeries(job, {.names = {"loss"}, .from_step = 1700, .to_step = 1730, .buckets = 3});
}

TEST_P(MetricSuite, AWorkerThatFellBackFurtherRepeatsStepsThatAreTakenOnce) {
  JobRecord job = Begin("fallback");
  Report(job, 1, 1500, 100);
  SaveAt(job, 1300);
  Lose(job);
  job = Restart("fallback", 1100);
  Report(job, 1101, 1600, 60);
  ExpectSeries(job, 1600, {{1, 1}, {1301, 2}});
  ExpectGaplessFeed(job.uid);
}

TEST_P(MetricSuite, BucketsOfALongJobAreTheFoldsOfItsPoints) {
  const JobRecord job = Begin("buckets");
  // Enough for chunks of the second level in the database.
  Report(job, 1, 23456, 100);
  for (const int64_t buckets : {1, 20, 24, 200, 235, 1000, 9999}) {
    ExpectBucketsOfSeries(job, {.buckets = buckets});
  }
  ExpectBucketsOfSeries(job, {.train = false, .buckets = 50});
  ExpectBucketsOfSeries(job,
                        {.names = {"rate"}, .from_step = 12345, .to_step = 12999, .buckets = 7});
  const auto none = jobs().ReadMetricBuckets(job.uid, {.names = {"nothing"}});
  ASSERT_OK(none.status());
  EXPECT_TRUE(none->empty());
  EXPECT_TRUE(absl::IsNotFound(jobs().ReadMetricBuckets("no-such-uid", {}).status()));
}

TEST_P(MetricSuite, AnEndedJobKeepsItsPointsAndADeletedOneNothing) {
  const JobRecord job = Begin("ended");
  Report(job, 1, 1000, 33);
  Tell(job, RankFinished{false, 1000, "it is enough"});
  Tell(job, RankExited{0, 0, false, ""});
  ASSERT_EQ(Get("ended").state, JobState::kSucceeded);
  ExpectSeries(job, 1000, {{1, 1}});
  ExpectGaplessFeed(job.uid);
  EXPECT_OK(jobs().Delete({"default", "ended"}, 0));
  EXPECT_TRUE(absl::IsNotFound(jobs().ReadMetrics(job.uid, {}).status()));
}

INSTANTIATE_TEST_SUITE_P(Stores, MetricSuite, ::testing::Values("memory", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trainyard::testing
