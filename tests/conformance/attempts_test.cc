// What ranks report, and what becomes of their job.

#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

constexpr JobStore::MetricQuery kAll{.include_superseded = true};

TEST_P(StoreSuite, JobGoesTheWholeWay) {
  Register("n1");
  Submit("a");
  JobRecord job = Run("a", {"n1"});
  EXPECT_EQ(job.attempt, 1);
  EXPECT_NE(job.start_time, absl::InfinitePast());
  EventWriter& writer = Writer(job);
  writer.Train(1).Train(2).Checkpoint(2).Train(3);
  const AppendResult middle = Append(job, 0, "n1", writer);
  EXPECT_EQ(middle.acked_sequence, 6);
  EXPECT_FALSE(middle.job_changed);
  EXPECT_EQ(Get("a").step, 3);
  EXPECT_EQ(Get("a").newest_checkpoint_uri, "file:///checkpoints/step-2");
  EXPECT_EQ(Get("a").version, job.version);  // steps are no new version
  writer.Checkpoint(3).Finished(3);
  Append(job, 0, "n1", writer);
  EXPECT_EQ(Get("a").state, JobState::kRunning);  // the process may still be there
  const AppendResult end = Append(job, 0, "n1", writer.Exited());
  EXPECT_TRUE(end.job_changed);
  job = Get("a");
  EXPECT_EQ(job.state, JobState::kSucceeded);
  EXPECT_EQ(job.reason.code, reason::kFinished);
  EXPECT_NE(job.end_time, absl::InfinitePast());

  const auto feed = jobs().ReadFeed(job.uid, 0, 100);
  ASSERT_OK(feed.status());
  std::string kinds;
  for (const FeedRecord& item : *feed) kinds += "SMCAN"[item.what.index()];
  EXPECT_EQ(kinds, "SSASMMCMCS");  // queued, starting, attempt, running, …, succeeded
  ExpectGaplessFeed(job.uid);
  const auto changes = StateChanges(job.uid);
  EXPECT_EQ(changes.at(0).from, std::nullopt);
  EXPECT_EQ(changes.at(1).from, JobState::kQueued);
  EXPECT_EQ(changes.at(2).reason.message, "training begins");  // not: goes on from step 0
  EXPECT_EQ(jobs().ReadFeed(job.uid, 4, 2)->at(0).sequence, 5);
  EXPECT_EQ(jobs().ReadFeed(job.uid, 4, 2)->size(), 2u);
  EXPECT_TRUE(jobs().ReadFeed(job.uid, 10, 100)->empty());
  const auto attempts = fleet().ListAttempts(job.uid);
  ASSERT_OK(attempts.status());
  EXPECT_NE(attempts->at(0).end_time, absl::InfinitePast());
  EXPECT_EQ(attempts->at(0).ranks.at(0).outcome, RankOutcome::kSucceeded);
}

TEST_P(StoreSuite, EveryKindOfFeedItemReadsBackAsItWas) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  const double inf = std::numeric_limits<double>::infinity();
  writer.Add(MetricRecord{1,
                          MetricSplit::kValidation,
                          {{"loss", std::nan("")},
                           {"accuracy", 0.1},
                           {"a", inf},
                           {"b", -inf},
                           {"tiny", 5e-324},
                           {"na\"me,{}", 1.0 / 3}}});
  writer.Add(NoticeRecord{0, true, "two\nlines \"quoted\""});
  CheckpointWritten written{.checkpoint = {.step = 1, .uri = "file:///checkpoints/step-1"}};
  written.checkpoint.bytes = 1000;
  written.checkpoint.weights_sha256 = "weights1";
  written.checkpoint.metrics = {{"loss", 1.0 / 3}, {"bad \xff", -5e-324}};
  writer.Add(written);
  writer.Add(NoticeRecord{0, false, std::string("bad \xff byte \0 end", 16)});
  Append(job, 0, "n1", writer);
  const auto feed = jobs().ReadFeed(job.uid, 4, 100);
  ASSERT_OK(feed.status());
  ASSERT_EQ(feed->size(), 4u);
  const auto& metric = std::get<MetricRecord>(feed->at(0).what);
  EXPECT_EQ(metric.split, MetricSplit::kValidation);
  EXPECT_TRUE(std::isnan(metric.values.at("loss")));
  EXPECT_EQ(metric.values.at("accuracy"), 0.1);
  EXPECT_EQ(metric.values.at("a"), inf);
  EXPECT_EQ(metric.values.at("b"), -inf);
  EXPECT_EQ(metric.values.at("tiny"), 5e-324);
  EXPECT_EQ(metric.values.at("na\"me,{}"), 1.0 / 3);
  EXPECT_EQ(feed->at(0).attempt, 1);
  EXPECT_EQ(feed->at(0).time, absl::UnixEpoch());
  const auto& notice = std::get<NoticeRecord>(feed->at(1).what);
  EXPECT_TRUE(notice.warning);
  EXPECT_EQ(notice.message, "two\nlines \"quoted\"");
  const auto& checkpoint = std::get<CheckpointRecord>(feed->at(2).what);
  EXPECT_EQ(checkpoint.uri, "file:///checkpoints/step-1");
  EXPECT_EQ(checkpoint.weights_sha256, "weights1");
  EXPECT_EQ(checkpoint.bytes, 1000);
  const std::map<std::string, double> metrics = {{"loss", 1.0 / 3}, {"bad \uFFFD", -5e-324}};
  EXPECT_EQ(checkpoint.metrics, metrics);
  EXPECT_EQ(jobs().ListCheckpoints(job.uid)->at(0).metrics, metrics);
  EXPECT_EQ(std::get<NoticeRecord>(feed->at(3).what).message, "bad \uFFFD byte \uFFFD end");
  const auto started = jobs().ReadFeed(job.uid, 2, 1);
  EXPECT_EQ(std::get<AttemptStartedRecord>(started->at(0).what).nodes,
            std::vector<std::string>{"n1"});
}

TEST_P(StoreSuite, EventsAreTakenOnceAndWithoutGap) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  const std::vector<RankEventRecord> batch = writer.Train(1).Train(2).Train(3).Take();
  const RankId rank{job.uid, 1, 0};
  ASSERT_OK(fleet().AppendEvents({"n1", rank, batch}).status());
  const auto again = fleet().AppendEvents({"n1", rank, batch});
  ASSERT_OK(again.status());
  EXPECT_EQ(again->acked_sequence, 5);
  EXPECT_FALSE(again->fenced);
  std::vector<RankEventRecord> overlapping = batch;
  for (const RankEventRecord& event : writer.Train(4).Take()) overlapping.push_back(event);
  EXPECT_EQ(fleet().AppendEvents({"n1", rank, overlapping})->acked_sequence, 6);
  const std::vector<RankEventRecord> gap = {writer.Train(5).Train(6).Take().back()};
  const absl::Status status = fleet().AppendEvents({"n1", rank, gap}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("expected 7"), absl::string_view::npos);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, kAll)->size(), 4u);
  ExpectGaplessFeed(job.uid);
}

TEST_P(StoreSuite, OnlyRankZeroReportsMetricsAndCheckpoints) {
  Register("n1");
  Submit("a", 2);
  EXPECT_EQ(Place(Get("a"), {"n1", "n1"}, {0, 1}), 1);
  const JobRecord job = Get("a");
  const RankId rank{job.uid, 1, 1};
  EventWriter metric;
  EXPECT_EQ(fleet().AppendEvents({"n1", rank, metric.Train(1).Take()}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EventWriter checkpoint;
  EXPECT_EQ(fleet().AppendEvents({"n1", rank, checkpoint.Checkpoint(1).Take()}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreSuite, StaleAttemptCannotAppendMetrics) {
  Register("n1");
  Submit("a");
  const JobRecord first = Run("a", {"n1"});
  EventWriter& stale = Writer(first);
  Append(first, 0, "n1", stale.Train(1).Exited(0, 9));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_TRUE(Append(first, 0, "n1", stale.Train(2)).fenced);
  backend_->Pass(absl::Seconds(5));
  Run("a", {"n1"});
  EXPECT_TRUE(Append(first, 0, "n1", stale.Train(3)).fenced);
  EXPECT_TRUE(fleet().AppendEvents({"n2", {first.uid, 2, 0}, {}})->fenced);  // not its node
  EXPECT_TRUE(fleet().AppendEvents({"n1", {first.uid, 2, 7}, {}})->fenced);  // no such rank
  EXPECT_TRUE(fleet().AppendEvents({"n1", {"no such job", 1, 0}, {}})->fenced);
  EXPECT_EQ(jobs().ReadMetrics(first.uid, kAll)->size(), 1u);
}

TEST_P(StoreSuite, RestartGoesOnFromTheCheckpointAndSupersedesWhatCameAfter) {
  Register("n1");
  Submit("a");
  const JobRecord first = Run("a", {"n1"});
  Append(first, 0, "n1",
         Writer(first).Train(1).Train(2).Checkpoint(2).Train(3).Train(4).Exited(0, 9));
  JobRecord queued = Get("a");
  EXPECT_EQ(queued.state, JobState::kQueued);
  EXPECT_EQ(queued.reason.code, reason::kBackoff);
  EXPECT_EQ(queued.restarts, 1);
  EXPECT_NE(queued.not_before, absl::InfinitePast());
  ASSERT_TRUE(queued.failure.has_value());
  EXPECT_EQ(queued.failure->category, "LOST");
  EXPECT_EQ(queued.failure->node, "n1");

  const JobRecord second = Run("a", {"n1"});
  EXPECT_EQ(second.attempt, 2);
  const AttemptRecord attempt = fleet().ListAttempts(second.uid)->at(1);
  EXPECT_EQ(attempt.restore_step, 2);
  EXPECT_EQ(attempt.restore_uri, "file:///checkpoints/step-2");
  EXPECT_EQ(attempt.restore_manifest_sha256, "manifest2");
  EXPECT_EQ(jobs().ReadMetrics(second.uid, {})->size(), 2u);  // 3 and 4 will be done again
  Append(second, 0, "n1", Writer(second).Train(3, 7.0));
  const auto current = jobs().ReadMetrics(second.uid, {});
  ASSERT_OK(current.status());
  ASSERT_EQ(current->size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(current->at(i).point.step, i + 1);
  EXPECT_EQ(current->at(2).point.values.at("loss"), 7.0);
  EXPECT_EQ(current->at(2).attempt, 2);
  const auto all = jobs().ReadMetrics(second.uid, kAll);
  ASSERT_EQ(all->size(), 5u);
  EXPECT_TRUE(all->at(2).superseded);
  EXPECT_FALSE(all->at(3).superseded);
  EXPECT_TRUE(all->at(4).superseded);
  ExpectGaplessFeed(second.uid);
}

// The newest checkpoint was damaged: the worker goes on from one before it.
TEST_P(StoreSuite, RestartFromAnOlderCheckpointThanAssignedLeavesNoGapAndDoublesNothing) {
  Register("n1");
  Submit("a");
  const JobRecord first = Run("a", {"n1"});
  Append(
      first, 0, "n1",
      Writer(first).Train(1).Checkpoint(1).Train(2).Train(3).Checkpoint(3).Train(4).Exited(0, 9));
  const auto fall_back = [&](int64_t to) {
    EXPECT_EQ(Place(Get("a"), {"n1"}), 1);
    const JobRecord job = Get("a");
    EXPECT_EQ(fleet().ListAttempts(job.uid)->back().restore_step, 3);
    Append(job, 0, "n1", Writer(job).Restored(to));
    return Get("a");
  };
  const JobRecord second = fall_back(1);
  EXPECT_EQ(second.state, JobState::kRunning);
  EXPECT_EQ(second.reason.message, "goes on from step 1");
  EXPECT_EQ(second.step, 1);
  // It dies among the steps that are done again; the third gets past them, and dies.
  Append(second, 0, "n1", Writer(second).Train(2, 9.0).Exited(0, 9));
  const JobRecord third = fall_back(1);
  Append(third, 0, "n1",
         Writer(third).Train(2, 9.0).Train(3, 9.0).Train(4, 7.0).Train(5, 7.0).Exited(0, 9));

  const auto expect_series = [&](const std::vector<std::pair<int64_t, double>>& expected) {
    std::vector<std::pair<int64_t, double>> series;  // attempt and loss by step
    const auto rows = jobs().ReadMetrics(first.uid, {});
    ASSERT_OK(rows.status());
    for (const MetricRow& row : *rows) {
      EXPECT_EQ(row.point.step, static_cast<int64_t>(series.size()) + 1);
      series.emplace_back(row.attempt, row.point.values.at("loss"));
    }
    EXPECT_EQ(series, expected);
  };
  expect_series({{1, 1.0}, {1, 1.0}, {1, 1.0}, {3, 7.0}, {3, 7.0}});
  EXPECT_EQ(jobs().ReadMetrics(first.uid, kAll)->size(), 6u);  // and step 4 of the first, apart
  ExpectGaplessFeed(first.uid);
}

TEST_P(StoreSuite, CheckpointThatReplacesADamagedOneSupersedesNothing) {
  Register("n1");
  Submit("a");
  const JobRecord first = Run("a", {"n1"});
  Append(first, 0, "n1", Writer(first).Train(1).Checkpoint(1).Train(2).Checkpoint(2).Exited(0, 9));
  ASSERT_EQ(Place(Get("a"), {"n1"}), 1);
  const JobRecord second = Get("a");
  // Step 2 is written anew; the checkpoint before it is removed as usual.
  Append(second, 0, "n1",
         Writer(second)
             .Restored(1)
             .Train(2, 9.0)
             .Checkpoint(2, {"file:///checkpoints/step-1"})
             .Train(3)
             .Exited(0, 9));
  const JobRecord third = Run("a", {"n1"});
  EXPECT_EQ(fleet().ListAttempts(third.uid)->back().restore_step, 2);
  Append(third, 0, "n1", Writer(third).Train(3).Train(4).Finished(4).Exited());
  EXPECT_EQ(Get("a").state, JobState::kSucceeded);
  const auto rows = jobs().ReadMetrics(third.uid, {});
  ASSERT_OK(rows.status());
  std::vector<std::pair<int64_t, int64_t>> series;  // step and attempt
  for (const MetricRow& row : *rows) series.emplace_back(row.point.step, row.attempt);
  EXPECT_EQ(series, (std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {3, 3}, {4, 3}}));
  ExpectGaplessFeed(third.uid);
}

TEST_P(StoreSuite, PointThatTheSeriesHasIsNotTakenAgain) {
  Register("n1");
  Submit("a");
  const JobRecord first = Run("a", {"n1"});
  Append(first, 0, "n1", Writer(first).Train(1).Checkpoint(1).Exited(0, 9));
  const JobRecord second = Run("a", {"n1"});
  // The step of the checkpoint itself: its train point is there, its validation point is not.
  EventWriter& writer = Writer(second);
  writer.Train(1).Add(MetricRecord{1, MetricSplit::kValidation, {{"loss", 2.0}}}).Train(2).Train(2);
  Append(second, 0, "n1", writer);
  const auto rows = jobs().ReadMetrics(second.uid, kAll);
  ASSERT_OK(rows.status());
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ(rows->at(0).attempt, 1);
  EXPECT_EQ(rows->at(1).point.split, MetricSplit::kValidation);
  EXPECT_EQ(rows->at(2).point.step, 2);
  ExpectGaplessFeed(second.uid);
}

TEST_P(StoreSuite, MetricsAreReadByRangeSplitAndPage) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  for (int step = 1; step <= 20; ++step) {
    writer.Train(step);
    if (step % 5 == 0) writer.Add(MetricRecord{step, MetricSplit::kValidation, {{"loss", 1.0}}});
  }
  Append(job, 0, "n1", writer);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, {.validation = false})->size(), 20u);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, {.train = false})->size(), 4u);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, {.from_step = 5, .to_step = 10})->size(), 8u);
  JobStore::MetricQuery query{.limit = 7};
  size_t seen = 0;
  while (true) {
    const auto page = jobs().ReadMetrics(job.uid, query);
    ASSERT_OK(page.status());
    if (page->empty()) break;
    seen += page->size();
    query.after_step = page->back().point.step;
    query.after_split = page->back().point.split;
    query.after_attempt = page->back().attempt;
  }
  EXPECT_EQ(seen, 24u);
}

TEST_P(StoreSuite, RemovedCheckpointsAreForgottenAndOneOfTheSameStepReplaced) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  writer.Checkpoint(1).Checkpoint(2).Checkpoint(3, {"file:///checkpoints/step-1"}).Checkpoint(3);
  Append(job, 0, "n1", writer);
  const auto checkpoints = jobs().ListCheckpoints(job.uid);
  ASSERT_OK(checkpoints.status());
  ASSERT_EQ(checkpoints->size(), 2u);
  EXPECT_EQ(checkpoints->at(0).step, 3);
  EXPECT_EQ(checkpoints->at(0).job_uid, job.uid);
  EXPECT_EQ(checkpoints->at(0).attempt, 1);
  EXPECT_EQ(checkpoints->at(1).step, 2);
}

TEST_P(StoreSuite, BudgetOfRestartsIsSpentThenTheJobFails) {
  Register("n1");
  Submit("a");  // two restarts
  for (int i = 0; i < 3; ++i) {
    const JobRecord job = Run("a", {"n1"});
    Append(job, 0, "n1", Writer(job).Fails(true, "STORAGE").Exited(74));
  }
  const JobRecord job = Get("a");
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_EQ(job.reason.code, reason::kRestartsSpent);
  EXPECT_EQ(job.restarts, 2);
  EXPECT_EQ(job.failure->category, "STORAGE");
}

// Its checkpoint is written anew, and what came after it is forgotten.
TEST_P(StoreSuite, RollbackGoesOnAtOnceFromItsCheckpointAndSpendsNoRestart) {
  Register("n1");
  Submit("a");
  JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  writer.Train(1).Train(2).Checkpoint(2).Train(3).Checkpoint(3);
  FailureRecord failure{"NUMERIC", "loss is NaN", /*retryable=*/true};
  failure.rolled_back = true;
  writer.Checkpoint(2, {"file:///checkpoints/step-3"}).Add(failure).Exited(76);
  Append(job, 0, "n1", writer);
  job = Get("a");
  EXPECT_EQ(job.state, JobState::kQueued);
  EXPECT_EQ(job.reason.code, reason::kRolledBack);
  EXPECT_EQ(job.restarts, 0);
  EXPECT_EQ(job.not_before, absl::InfinitePast());
  EXPECT_TRUE(job.failure->rolled_back);

  job = Run("a", {"n1"});
  EXPECT_EQ(fleet().ListAttempts(job.uid)->back().restore_step, 2);
  Append(job, 0, "n1", Writer(job).Train(3, 9.0));
  const auto points = jobs().ReadMetrics(job.uid, {});
  ASSERT_OK(points.status());
  ASSERT_EQ(points->size(), 3u);
  EXPECT_EQ(points->at(2).point.values.at("loss"), 9.0);
}

TEST_P(StoreSuite, AnEarlySuccessKeepsItsReasonUntilItsProcessIsGone) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  Append(job, 0, "n1", Writer(job).Train(5).Add(RankFinished{false, 5, "early stopping: loss"}));
  Append(job, 0, "n1", Writer(job).Exited());
  EXPECT_EQ(Get("a").state, JobState::kSucceeded);
  EXPECT_EQ(Get("a").reason, (Reason{reason::kStoppedEarly, "early stopping: loss"}));
}

TEST_P(StoreSuite, FailureThatNoRestartMendsFailsTheJobAtOnce) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  Append(job, 0, "n1", Writer(job).Fails(false));
  EXPECT_EQ(Get("a").state, JobState::kRunning);
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());  // it must leave
  Append(job, 0, "n1", Writer(job).Train(9).Exited(1));
  EXPECT_EQ(Get("a").state, JobState::kFailed);
  EXPECT_EQ(Get("a").reason.code, reason::kRankFailed);
  EXPECT_TRUE(jobs().ReadMetrics(job.uid, kAll)->empty());
  EXPECT_EQ(jobs().Cancel({"default", "a"}, 0, kUser).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// What failed it was mended. It goes on from its newest checkpoint, with all restarts to spend.
TEST_P(StoreSuite, AFailedJobIsResumedFromItsNewestCheckpoint) {
  Register("n1");
  Submit("a");
  JobRecord job = Run("a", {"n1"});
  Append(job, 0, "n1", Writer(job).Train(1).Checkpoint(1).Fails(true, "STORAGE").Exited(74));
  job = Run("a", {"n1"});
  Append(job, 0, "n1", Writer(job).Train(2).Checkpoint(2).Fails(false).Exited(1));
  ASSERT_EQ(Get("a").state, JobState::kFailed);
  ASSERT_EQ(Get("a").restarts, 1);
  const auto resumed = jobs().Resume({"default", "a"}, 0, kUser);
  ASSERT_OK(resumed.status());
  EXPECT_EQ(resumed->state, JobState::kQueued);
  EXPECT_EQ(resumed->restarts, 0);
  EXPECT_FALSE(Get("a").failure.has_value());
  job = Run("a", {"n1"});
  EXPECT_EQ(fleet().ListAttempts(job.uid)->at(2).restore_step, 2);
  Append(job, 0, "n1", Writer(job).Train(3).Finished(3).Exited());
  EXPECT_EQ(Get("a").state, JobState::kSucceeded);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, kAll)->size(), 3u);
  EXPECT_EQ(jobs().Resume({"default", "a"}, 0, kUser).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ExpectGaplessFeed(job.uid);
}

TEST_P(StoreSuite, RankThatRestoredAnotherStepIsADefectAndReportsNothing) {
  Register("n1");
  Submit("a");
  ASSERT_EQ(Place(Get("a"), {"n1"}), 1);
  const JobRecord job = Get("a");
  Append(job, 0, "n1", Writer(job).Restored(5).Train(6).Exited(0, 9));
  EXPECT_EQ(Get("a").state, JobState::kFailed);
  EXPECT_EQ(Get("a").failure->category, "INTERNAL");
  EXPECT_TRUE(jobs().ReadMetrics(job.uid, kAll)->empty());
}

TEST_P(StoreSuite, StepsThatTheJobDoesNotHaveEndTheRankAndAreNotStored) {
  Register("n1");
  const std::function<void(EventWriter&)> kLies[] = {
      [](EventWriter& writer) { writer.Train(11); },
      [](EventWriter& writer) { writer.Checkpoint(11); },
      [](EventWriter& writer) { writer.Finished(11); },
      [](EventWriter& writer) { writer.Finished(9); },
  };
  for (const auto& lie : kLies) {
    JobRecord job = NewJob("");
    job.total_steps = 10;
    const auto submitted = jobs().Submit(job);
    ASSERT_OK(submitted.status());
    ASSERT_EQ(Place(*submitted, {"n1"}), 1);
    job = Get(submitted->job_id);
    EventWriter& writer = Writer(job).Restored(0).Train(1);
    lie(writer);
    Append(job, 0, "n1", writer.Exited());
    job = Get(submitted->job_id);
    EXPECT_EQ(job.state, JobState::kFailed);
    ASSERT_TRUE(job.failure.has_value());
    EXPECT_TRUE(absl::StrContains(job.failure->message, "the worker reported"));
    EXPECT_EQ(job.step, 1);
    EXPECT_EQ(job.newest_checkpoint_uri, "");
    EXPECT_EQ(jobs().ReadMetrics(job.uid, {})->size(), 1u);
  }
}

TEST_P(StoreSuite, PauseWaitsForTheCheckpointAndResumeGoesOnFromIt) {
  Register("n1");
  Submit("a");
  JobRecord job = Run("a", {"n1"});
  const auto paused = jobs().Pause({"default", "a"}, job.version, kUser, absl::Seconds(30));
  ASSERT_OK(paused.status());
  EXPECT_EQ(paused->state, JobState::kSuspending);
  const auto desired = fleet().ReadDesired("n1");
  ASSERT_OK(desired.status());
  ASSERT_EQ(desired->size(), 1u);
  EXPECT_TRUE(desired->at(0).suspend);
  EXPECT_EQ(desired->at(0).suspend_deadline, paused->suspend_deadline);
  Append(job, 0, "n1", Writer(job).Train(1).Checkpoint(1).Suspended(1).Exited());
  EXPECT_EQ(Get("a").state, JobState::kSuspended);
  EXPECT_EQ(Get("a").reason, kUser);
  ASSERT_OK(jobs().Resume({"default", "a"}, 0, kUser).status());
  job = Run("a", {"n1"});
  EXPECT_EQ(fleet().ListAttempts(job.uid)->at(1).restore_step, 1);
  EXPECT_EQ(job.restarts, 0);
}

TEST_P(StoreSuite, PauseThatOutlastsItsGraceIsKilledAndHolds) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  ASSERT_OK(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(5)).status());
  EXPECT_EQ(fleet().ReadDesired("n1")->size(), 1u);
  backend_->Pass(absl::Seconds(6));
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());
  Append(job, 0, "n1", Writer(job).Exited(0, 9));
  EXPECT_EQ(Get("a").state, JobState::kSuspended);
  EXPECT_EQ(Get("a").restarts, 0);
}

TEST_P(StoreSuite, PauseBeforeTheRanksMetStopsThem) {
  Register("n1");
  Submit("a");
  ASSERT_EQ(Place(Get("a"), {"n1"}), 1);
  const JobRecord job = Get("a");
  ASSERT_OK(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(5)).status());
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());
  // Its report crossed with the pause: the wish does not come back.
  Append(job, 0, "n1", Writer(job).Restored(0));
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());
  EXPECT_TRUE(*fleet().ReportAbsent("n1", {{job.uid, 1, 0}}));
  EXPECT_EQ(Get("a").state, JobState::kSuspended);
  EXPECT_TRUE(ListRanks(fleet(), "n1")->empty());
}

TEST_P(StoreSuite, ResumeWhileSuspendingGoesBackToTheQueueAndPauseAgainHolds) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  ASSERT_OK(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(5)).status());
  const auto resumed = jobs().Resume({"default", "a"}, 0, kUser);
  ASSERT_OK(resumed.status());
  EXPECT_EQ(resumed->state, JobState::kSuspending);
  EXPECT_EQ(resumed->suspend_cause, SuspendCause::kNone);
  EXPECT_EQ(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(5))->suspend_cause,
            SuspendCause::kUser);
  ASSERT_OK(jobs().Resume({"default", "a"}, 0, kUser).status());
  Append(job, 0, "n1", Writer(job).Suspended(0).Exited());
  EXPECT_EQ(Get("a").state, JobState::kQueued);
}

TEST_P(StoreSuite, CancelEndsOnceTheProcessIsGone) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EXPECT_EQ(jobs().Cancel({"default", "a"}, 0, kUser)->state, JobState::kCancelling);
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());
  EXPECT_EQ(ListRanks(fleet(), "n1")->size(), 1u);
  EXPECT_EQ(jobs().Resume({"default", "a"}, 0, kUser).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Append(job, 0, "n1", Writer(job).Exited(0, 9));
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  EXPECT_EQ(Get("a").reason, kUser);
}

TEST_P(StoreSuite, SuccessThatCommitsWhileCancellingWins) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  Append(job, 0, "n1", Writer(job).Finished(1).Exited());
  EXPECT_EQ(Get("a").state, JobState::kSucceeded);
}

TEST_P(StoreSuite, AbsentRanksOfACancelledJobAreGone) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  const RankId rank{job.uid, 1, 0};
  EXPECT_FALSE(*fleet().ReportAbsent("n1", {rank}));  // it should run: an older set was reconciled
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  EXPECT_FALSE(*fleet().ReportAbsent("n2", {rank}));  // not its node
  EXPECT_TRUE(*fleet().ReportAbsent("n1", {rank}));
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  EXPECT_FALSE(*fleet().ReportAbsent("n1", {rank}));
}

TEST_P(StoreSuite, WorkerThatSomebodyElseStopsGoesBackToTheQueueForFree) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  Append(job, 0, "n1", Writer(job).Checkpoint(1).Suspended(1).Exited());
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").reason.code, reason::kInterrupted);
  EXPECT_EQ(Get("a").restarts, 0);
}

TEST_P(StoreSuite, GangIsOverWhenOneRankFails) {
  Register("n1");
  Register("n2");
  Submit("a", 2);
  const JobRecord job = Run("a", {"n1", "n2"});
  EXPECT_EQ(fleet().ReadDesired("n1")->at(0).addresses,
            (std::vector<std::string>{"n1.example", "n2.example"}));
  const AppendResult failed = Append(job, 1, "n2", Writer(job, 1).Fails(true).Exited(1));
  EXPECT_TRUE(failed.job_changed);
  EXPECT_EQ(Get("a").state, JobState::kRunning);
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());
  Append(job, 0, "n1", Writer(job).Exited(0, 9));  // killed, because of that
  const JobRecord queued = Get("a");
  EXPECT_EQ(queued.state, JobState::kQueued);
  EXPECT_EQ(queued.failure->rank, 1);
  EXPECT_EQ(queued.failure->node, "n2");
  EXPECT_EQ(queued.restarts, 1);
  EXPECT_EQ(fleet().FindRank(job.uid, 1, 0)->outcome, RankOutcome::kKilled);
}

TEST_P(StoreSuite, JobRunsOnceEveryRankOfTheGangIsUp) {
  Register("n1");
  Submit("a", 2);
  ASSERT_EQ(Place(Get("a"), {"n1", "n1"}, {0, 1}), 1);
  const JobRecord job = Get("a");
  Append(job, 0, "n1", Writer(job, 0).Restored(0));
  EXPECT_EQ(Get("a").state, JobState::kStarting);
  EXPECT_TRUE(Append(job, 1, "n1", Writer(job, 1).Restored(0)).job_changed);
  EXPECT_EQ(Get("a").state, JobState::kRunning);
}

TEST_P(StoreSuite, VanishedProcessSpendsARestart) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  Append(job, 0, "n1", Writer(job).Vanished());
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").restarts, 1);
}

TEST_P(StoreSuite, WorkerThatFencedItselfSpendsNoRestart) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  Append(job, 0, "n1", Writer(job).Exited(75));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").reason.code, reason::kNodeLost);
  EXPECT_EQ(Get("a").restarts, 0);
}

TEST_P(StoreSuite, MissingRanksAreNamed) {
  Register("n1");
  Submit("a");
  JobRecord job = Get("a");
  EXPECT_EQ(fleet().FindRank("missing", 0, 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(fleet().FindRank(job.uid, 0, 0).status().message().find("never placed"),
            absl::string_view::npos);
  job = Run("a", {"n1"});
  EXPECT_EQ(fleet().FindRank(job.uid, 0, 0)->node, "n1");
  EXPECT_EQ(fleet().FindRank(job.uid, 0, 0)->slots, std::vector<int>{0});
  EXPECT_EQ(fleet().FindRank(job.uid, 2, 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fleet().FindRank(job.uid, 1, 1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace trainyard::testing
