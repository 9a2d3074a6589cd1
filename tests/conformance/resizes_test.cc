// Jobs whose number of slots changes: the range that users set, and attempts of another size.

#include "storage/records/reason_codes.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

const Reason kShrinks{reason::kResizing, "resized 2 -> 1: job x of priority 3 waits"};

class ResizeSuite : public StoreSuite {
 protected:
  // RUNNING on slot 0 of n1 and of n2.
  JobRecord RunOnTwo() {
    Register("n1");
    Register("n2");
    JobRecord job = NewJob("a", 1);
    job.max_slots = 4;
    job.logical_ranks = 6;
    EXPECT_TRUE(jobs().Submit(job).ok());
    return Run("a", {"n1", "n2"});
  }

  static StateStays Stays(const DesiredRank& one) {
    return StateStaysFor(one.job, one.attempt, one.rank);
  }
  static int64_t Kept(const DesiredRank& one) { return KeptStateFor(one.job, one.attempt).step; }

  // Both reports, in one commit.
  void AppendBoth(const JobRecord& job, EventWriter& of_first, EventWriter& of_second) {
    const std::vector<RankEvents> group = {{"n1", {job.uid, job.attempt, 0}, of_first.Take()},
                                           {"n2", {job.uid, job.attempt, 1}, of_second.Take()}};
    for (const auto& answer : fleet().AppendGroup(group)) EXPECT_FALSE(answer->fenced);
  }

  // Once it waits, on slot 0 of `node`.
  JobRecord PlaceAgain(const std::string& node) {
    const JobRecord job = Get("a");
    EXPECT_EQ(job.state, JobState::kQueued);
    Decisions decisions;
    decisions.placements = {{job.uid, job.version, {{node, {0}}}, kShrinks}};
    EXPECT_EQ(scheduler().Apply(Lead(), decisions).value_or(-1), 1);
    return Get("a");
  }

  int Shrink(const JobRecord& job, int64_t version, const std::string& to = "n2") {
    Decisions decisions;
    decisions.resizes = {{.job_uid = job.uid,
                          .job_version = version,
                          .ranks = {{to, {0}}},
                          .reason = kShrinks,
                          .grace = absl::Seconds(9),
                          .grows = true}};
    return scheduler().Apply(Lead(), decisions).value_or(-1);
  }

  void Leave(const JobRecord& job, int64_t step) {
    Append(job, 0, "n1", Writer(job).Train(step).Checkpoint(step).Suspended(step).Exited());
    Append(job, 1, "n2", Writer(job, 1).Suspended(step).Exited());
  }
};

TEST_P(ResizeSuite, TheGangLeavesAndAnotherGoesOnWithNothingSpentAndNothingLost) {
  const JobRecord job = RunOnTwo();
  EXPECT_EQ(Get("a").slots, 2);
  EXPECT_EQ(Get("a").logical_ranks, 6);
  EXPECT_EQ(Shrink(job, job.version + 1), 0);
  ASSERT_EQ(Shrink(job, job.version), 1);
  const JobRecord leaving = Get("a");
  EXPECT_EQ(leaving.state, JobState::kSuspending);
  EXPECT_EQ(ShownState(leaving), JobState::kRunning);
  EXPECT_TRUE(IsResizing(leaving));
  EXPECT_EQ(leaving.resize->ranks, (std::vector<RankSlots>{{"n2", {0}}}));
  EXPECT_EQ(leaving.resize->growths.size(), 1u);
  EXPECT_TRUE(fleet().ReadDesired("n1")->at(0).suspend);
  EXPECT_EQ(Shrink(leaving, leaving.version), 0);  // it leaves already

  Leave(job, 1);
  const JobRecord left = Get("a");
  EXPECT_EQ(left.state, JobState::kQueued);
  EXPECT_TRUE(IsResizing(left));
  const auto changes = scheduler().ReadChanges("", false);
  ASSERT_TRUE(changes.ok());
  EXPECT_EQ(changes->jobs.at(0).resize, leaving.resize);

  Decisions decisions;
  decisions.placements = {{left.uid, left.version, {{"n2", {0}}}, kShrinks}};
  ASSERT_EQ(*scheduler().Apply(Lead(), decisions), 1);
  const JobRecord again = Get("a");
  EXPECT_EQ(again.state, JobState::kStarting);
  EXPECT_EQ(ShownState(again), JobState::kRunning);
  EXPECT_FALSE(IsResizing(again));
  EXPECT_EQ(again.slots, 1);
  EXPECT_EQ(again.attempt, 2);
  EXPECT_EQ(again.step, 1);
  EXPECT_EQ(again.restarts, 0);
  Append(again, 0, "n2", Writer(again).Restored(1).Train(2));
  EXPECT_EQ(Get("a").state, JobState::kRunning);
  EXPECT_EQ(Get("a").step, 2);

  std::vector<std::string> told;  // from the first RUNNING on
  for (const StateChangeRecord& change : StateChanges(job.uid)) {
    told.push_back(std::string(JobStateName(change.to)) + " " + change.reason.code);
  }
  EXPECT_EQ(told,
            (std::vector<std::string>{"QUEUED SUBMITTED", "STARTING PLACED", "RUNNING RUNNING",
                                      "RUNNING RESIZING", "RUNNING RUNNING"}));
  ExpectGaplessFeed(job.uid);
}

// Metrics behind the newest checkpoint stay: the next attempt has the state behind them, or makes
// these steps again.
TEST_P(ResizeSuite, WhatIsLeftInMemoryIsWhereTheNextAttemptGoesOn) {
  const JobRecord job = RunOnTwo();
  ASSERT_EQ(Shrink(job, job.version, "n1"), 1);
  const DesiredRank leaving = fleet().ReadDesired("n1")->at(0);
  EXPECT_EQ(Stays(leaving), StateStays::kHere);
  EXPECT_EQ(Stays(fleet().ReadDesired("n2")->at(0)), StateStays::kElsewhere);
  Writer(job).Train(1).Train(2).Checkpoint(2).Train(3).Train(4).Keeps(4).Exited();
  AppendBoth(job, Writer(job), Writer(job, 1).Suspended(4).Exited());
  ASSERT_EQ(Get("a").resize->kept_step, 4);

  const JobRecord again = PlaceAgain("n1");
  EXPECT_EQ(again.step, 4);
  DesiredRank next = fleet().ReadDesired("n1")->at(0);
  EXPECT_EQ(next.attempt.restore_step, 4);
  EXPECT_EQ(next.attempt.restore_uri, "file:///checkpoints/step-2");
  EXPECT_EQ(Kept(next), 4);
  const auto losses = [&] {
    std::vector<int64_t> steps;
    const std::vector<MetricRow> rows = jobs().ReadMetrics(job.uid, {}).value();
    for (const MetricRow& row : rows) {
      steps.push_back(row.point.step);
    }
    return steps;
  };
  EXPECT_EQ(losses(), (std::vector<int64_t>{1, 2, 3, 4}));

  // An attempt that did not get so far leaves it to the next one.
  Append(again, 0, "n1", Writer(again).Fails(true).Exited(71));
  const JobRecord third = PlaceAgain("n1");
  EXPECT_EQ(third.step, 4);
  next = fleet().ReadDesired("n1")->at(0);
  EXPECT_EQ(Kept(next), 4);

  // The memory was gone: it went on from the checkpoint.
  Append(third, 0, "n1", Writer(third).Restored(2).Train(3).Train(4).Train(5));
  EXPECT_EQ(losses(), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(Get("a").step, 5);
  Append(third, 0, "n1", Writer(third).Fails(true).Exited(71));

  // An attempt after that one has nothing in memory.
  EXPECT_EQ(PlaceAgain("n1").step, 2);
  next = fleet().ReadDesired("n1")->at(0);
  EXPECT_EQ(Kept(next), 0);
}

TEST_P(ResizeSuite, NothingIsLeftInMemoryWhereNobodyWillReadIt) {
  Register("n3");
  const JobRecord job = RunOnTwo();
  ASSERT_EQ(Shrink(job, job.version, "n3"), 1);  // where the gang has no node
  const DesiredRank leaving = fleet().ReadDesired("n1")->at(0);
  EXPECT_TRUE(leaving.suspend);
  EXPECT_EQ(Stays(leaving), StateStays::kInCheckpoint);
}

TEST_P(ResizeSuite, AUserWhoPausesMeanwhileGetsACheckpoint) {
  const JobRecord job = RunOnTwo();
  ASSERT_EQ(Shrink(job, job.version), 1);  // to n2, and rank 0 is on n1
  EXPECT_EQ(Stays(fleet().ReadDesired("n1")->at(0)), StateStays::kElsewhere);
  EXPECT_EQ(Stays(fleet().ReadDesired("n2")->at(0)), StateStays::kHere);
  ASSERT_TRUE(
      jobs().Pause({"default", "a"}, 0, {reason::kPausedByUser, "p"}, absl::Seconds(9)).ok());
  EXPECT_EQ(Stays(fleet().ReadDesired("n1")->at(0)), StateStays::kInCheckpoint);
  EXPECT_EQ(Stays(fleet().ReadDesired("n2")->at(0)), StateStays::kInCheckpoint);
}

// It may be what makes them fail; and a job that has ended leaves nothing to whoever resumes it.
TEST_P(ResizeSuite, WhatIsInMemoryIsTriedTwiceAndForgottenWithTheJob) {
  const JobRecord job = RunOnTwo();
  ASSERT_EQ(Shrink(job, job.version, "n1"), 1);
  AppendBoth(job, Writer(job).Train(1).Keeps(1).Exited(), Writer(job, 1).Suspended(1).Exited());
  for (const int64_t expected : {1, 1, 0}) {
    const JobRecord again = PlaceAgain("n1");
    EXPECT_EQ(again.step, expected);
    EXPECT_EQ(Kept(fleet().ReadDesired("n1")->at(0)), expected);
    Append(again, 0, "n1", Writer(again).Fails(true).Exited(71));
  }
  EXPECT_EQ(Get("a").state, JobState::kFailed);
  ASSERT_TRUE(Get("a").resize.has_value());
  EXPECT_EQ(Get("a").resize->kept_step, 0);
}

TEST_P(ResizeSuite, AJobThatIsResizedIsListedAsRunning) {
  const JobRecord job = RunOnTwo();
  ASSERT_EQ(Shrink(job, job.version), 1);
  const auto count = [this](JobFilter::Op op, const std::string& state) {
    const JobFilter term{.field = JobFilter::Field::kState, .op = op, .value = state};
    return jobs().List("default", {term}, 10, "")->jobs.size();
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(count(JobFilter::Op::kEq, "RUNNING"), 1u);
    EXPECT_EQ(count(JobFilter::Op::kEq, "SUSPENDING"), 0u);
    EXPECT_EQ(count(JobFilter::Op::kEq, "QUEUED"), 0u);
    EXPECT_EQ(count(JobFilter::Op::kNe, "RUNNING"), 0u);
    EXPECT_EQ(count(JobFilter::Op::kNe, "QUEUED"), 1u);
    if (i == 0) Leave(job, 1);
  }
}

TEST_P(ResizeSuite, WhatUsersDoMeanwhileEndsTheResize) {
  const JobRecord job = RunOnTwo();
  ASSERT_EQ(Shrink(job, job.version), 1);
  ASSERT_TRUE(
      jobs().Pause({"default", "a"}, 0, {reason::kPausedByUser, "p"}, absl::Seconds(9)).ok());
  EXPECT_FALSE(IsResizing(Get("a")));
  Leave(job, 1);
  EXPECT_EQ(Get("a").state, JobState::kSuspended);
  ASSERT_TRUE(jobs().Resume({"default", "a"}, 0, {reason::kResumedByUser, "r"}).ok());
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_FALSE(IsResizing(Get("a")));
  ASSERT_TRUE(jobs().Cancel({"default", "a"}, 0, {reason::kCancelledByUser, "c"}).ok());
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
}

TEST_P(ResizeSuite, ANodeThatIsLostMeanwhileCostsNothing) {
  const JobRecord job = RunOnTwo();
  ASSERT_EQ(Shrink(job, job.version), 1);
  EXPECT_EQ(*scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}), 1);
  Append(job, 1, "n2", Writer(job, 1).Fails(true, "PEER").Exited(77));
  const JobRecord left = Get("a");
  EXPECT_EQ(left.state, JobState::kQueued);
  EXPECT_TRUE(IsResizing(left));
  EXPECT_EQ(left.restarts, 0);
}

TEST_P(ResizeSuite, TheRangeIsKeptUntilTheEndAndBeyond) {
  const JobRecord job = RunOnTwo();
  const JobName name{"default", "a"};
  EXPECT_TRUE(absl::IsNotFound(jobs().SetSlotRange({"default", "b"}, 0, {1, 2, 3}, "x").status()));
  EXPECT_TRUE(absl::IsAborted(jobs().SetSlotRange(name, 99, {2, 3, 100}, "x").status()));
  const auto set = jobs().SetSlotRange(name, job.version, {2, 3, 100}, "x");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->version, job.version + 1);
  const auto same = [this](const JobRecord& read) {
    EXPECT_EQ(read.min_slots, 2);
    EXPECT_EQ(read.max_slots, 3);
    EXPECT_EQ(read.bytes_per_slot, 100);
    EXPECT_EQ(read.logical_ranks, 6);
  };
  same(Get("a"));
  EXPECT_EQ(Get("a").state, JobState::kRunning);
  same(scheduler().ReadSnapshot()->queue == nullptr || scheduler().ReadSnapshot()->jobs.size() == 1
           ? scheduler().ReadSnapshot()->jobs.at(0)
           : JobRecord());
  ASSERT_TRUE(jobs().Cancel(name, 0, {reason::kCancelledByUser, "c"}).ok());
  for (int rank = 0; rank < 2; ++rank) {
    Append(job, rank, rank == 0 ? "n1" : "n2", Writer(job, rank).Exited(0, 9));
  }
  ASSERT_EQ(Get("a").state, JobState::kCancelled);
  same(Get("a"));
  EXPECT_EQ(Get("a").slots, 0);
  ASSERT_TRUE(jobs().Resume(name, 0, {reason::kResumedByUser, "r"}).ok());
  same(Get("a"));
}

// So that a job which failed for want of memory, say, does not begin with what failed it.
TEST_P(ResizeSuite, AJobThatEndedGetsAnotherRangeForWhenItIsResumed) {
  const JobName name{"default", "a"};
  ASSERT_OK(jobs().Submit(NewJob("a")).status());
  ASSERT_OK(jobs().Cancel(name, 0, {reason::kCancelledByUser, "c"}).status());
  const JobRecord ended = Get("a");
  const size_t items = jobs().ReadFeed(ended.uid, 0, 100)->size();
  const SlotRange range{.min_slots = 2,
                        .max_slots = 6,
                        .bytes_per_slot = 70,
                        .slot_step = 2,
                        .group_ranks = 2,
                        .layout = "new",
                        .layout_in_words = "words"};
  EXPECT_TRUE(absl::IsAborted(jobs().SetSlotRange(name, 99, range, "x").status()));
  const auto set = jobs().SetSlotRange(name, ended.version, range, "x");
  ASSERT_TRUE(set.ok()) << set.status();
  const auto has_it = [&](const JobRecord& job) {
    EXPECT_EQ(job.min_slots, 2);
    EXPECT_EQ(job.max_slots, 6);
    EXPECT_EQ(job.bytes_per_slot, 70);
    EXPECT_EQ(job.slot_step, 2);
    EXPECT_EQ(job.group_ranks, 2);
    EXPECT_EQ(job.layout, "new");
  };
  has_it(*set);
  has_it(Get("a"));
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  EXPECT_EQ(Get("a").version, ended.version + 1);
  EXPECT_EQ(jobs().ReadFeed(ended.uid, 0, 100)->size(), items) << "its feed is over";
  ASSERT_OK(jobs().Resume(name, 0, {reason::kResumedByUser, "r"}).status());
  has_it(Get("a"));
  EXPECT_EQ(jobs().ReadFeed(ended.uid, 0, 100)->size(), items + 1);
}

// The layout that is asked for is one of the job, and of the attempts that are placed from then on.
TEST_P(ResizeSuite, AnAttemptHasTheLayoutThatItsJobHadWhenItWasPlaced) {
  const JobRecord job = RunOnTwo();
  const JobName name{"default", "a"};
  const auto placed_in = [&](int64_t attempt) {
    return fleet().FindAttempt(job.uid, attempt)->layout;
  };
  const auto said = [this](const std::string& node) {
    std::vector<std::string> layouts;
    const absl::StatusOr<std::vector<DesiredRank>> ranks = fleet().ReadDesired(node);
    for (const DesiredRank& one : *ranks) {
      layouts.push_back(one.attempt.layout + " of " + one.job.layout);
    }
    return layouts;
  };
  EXPECT_EQ(placed_in(1), "");
  const SlotRange laid{.min_slots = 1,
                       .max_slots = 4,
                       .bytes_per_slot = 70,
                       .group_ranks = 2,
                       .layout = "new",
                       .layout_in_words = "words"};
  const auto set = jobs().SetSlotRange(name, job.version, laid, "x");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->layout, "new");
  EXPECT_EQ(jobs().SetSlotRange(name, 0, laid, "x")->version, set->version) << "changes nothing";
  EXPECT_EQ(Get("a").layout, "new");
  EXPECT_EQ(Get("a").group_ranks, 2);
  EXPECT_EQ(scheduler().ReadSnapshot()->jobs.at(0).layout, "new");
  EXPECT_EQ(placed_in(1), "");
  EXPECT_EQ(said("n1"), std::vector<std::string>{" of new"});

  ASSERT_EQ(Shrink(job, set->version), 1);
  Leave(job, 5);
  const JobRecord again = PlaceAgain("n2");
  ASSERT_EQ(again.attempt, 2);
  EXPECT_EQ(placed_in(1), "");
  EXPECT_EQ(placed_in(2), "new");
  EXPECT_EQ(again.resize->layout, "new");
  EXPECT_EQ(said("n2"), std::vector<std::string>{"new of new"});
  ASSERT_TRUE(jobs().Cancel(name, 0, {reason::kCancelledByUser, "c"}).ok());
  Append(again, 0, "n2", Writer(again).Exited(0, 9));
  ASSERT_EQ(Get("a").state, JobState::kCancelled);
  EXPECT_EQ(Get("a").layout, "new");
  ASSERT_TRUE(jobs().Resume(name, 0, {reason::kResumedByUser, "r"}).ok());
  EXPECT_EQ(Get("a").layout, "new");
}

INSTANTIATE_TEST_SUITE_P(Stores, ResizeSuite, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
