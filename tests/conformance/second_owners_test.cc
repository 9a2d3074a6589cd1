// Gangs of which every rank has the whole state: what they leave in memory when they lose a rank.

#include "absl/strings/str_cat.h"
#include "storage/records/reason_codes.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

class SecondOwnerSuite : public StoreSuite {
 protected:
  // RUNNING on n1, n2 and n3.
  JobRecord RunOnThree(bool second_owner = true) {
    for (const char* node : {"n1", "n2", "n3"}) Register(node);
    JobRecord job = NewJob("a", 3);
    job.second_owner = second_owner;
    job.total_steps = 100;
    job.max_restarts = 10;
    EXPECT_TRUE(jobs().Submit(job).ok());
    return Run("a", {"n1", "n2", "n3"});
  }

  // A rank whose gang broke; it tells metrics of the steps after `told_after`.
  static FailureRecord LeftAlone(int64_t told_after = 0) {
    return {.category = "PEER",
            .message = "rank 2 is gone",
            .retryable = true,
            .has_state = true,
            .told_after = told_after};
  }

  DesiredRank Desired(const std::string& node) { return fleet().ReadDesired(node)->at(0); }
  bool IsDesired(const std::string& node) { return !fleet().ReadDesired(node)->empty(); }
  static StateStays Stays(const DesiredRank& one) {
    return StateStaysFor(one.job, one.attempt, one.rank);
  }

  JobRecord PlaceAgain() {
    const JobRecord job = Get("a");
    EXPECT_EQ(job.state, JobState::kQueued);
    EXPECT_EQ(Place(job, {"n1", "n2", "n3"}, {1, 1, 1}), 1);
    return Get("a");
  }

  std::vector<int64_t> Steps(const JobRecord& job) {
    std::vector<int64_t> steps;
    const std::vector<MetricRow> rows = *jobs().ReadMetrics(job.uid, {});
    for (const MetricRow& row : rows) steps.push_back(row.point.step);
    return steps;
  }
};

TEST_P(SecondOwnerSuite, ThoseThatAreLeftKeepTheStateAndTellWhatIsMissing) {
  const JobRecord job = RunOnThree();
  EXPECT_TRUE(Get("a").second_owner);
  Append(job, 0, "n1", Writer(job).Train(1).Train(2).Checkpoint(2).Train(3));
  // Its process is gone, and nobody else has noticed yet.
  Append(job, 0, "n1", Writer(job).Exited(0, 9));
  for (const char* node : {"n2", "n3"}) {
    const DesiredRank left = Desired(node);
    EXPECT_TRUE(left.suspend) << node;
    EXPECT_EQ(Stays(left), StateStays::kHereAlone) << node;
  }
  EXPECT_FALSE(IsDesired("n1"));
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone()));
  EXPECT_TRUE(Desired("n2").suspend) << "it has failed, and is not told to end yet";
  // It knows more than rank 0 told; the first of it is stored.
  Append(job, 1, "n2", Writer(job, 1).Train(2).Train(3).Train(4).Train(5).Keeps(5).Exited(77));
  Append(job, 2, "n3", Writer(job, 2).Add(LeftAlone()).Train(4).Keeps(4).Exited(77));
  const JobRecord left = Get("a");
  EXPECT_EQ(left.state, JobState::kQueued);
  EXPECT_EQ(left.failure->category, "LOST");
  ASSERT_TRUE(left.resize.has_value());
  EXPECT_EQ(left.resize->kept_step, 5);
  EXPECT_EQ(left.resize->ranks, (std::vector<RankSlots>{{"n2", {0}}})) << "who has that step";
  EXPECT_FALSE(IsResizing(left));
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{1, 2, 3, 4, 5}));

  const auto unneeded = [&](int64_t attempt) {
    return fleet().FindUnneeded({{job.uid, attempt}, {"gone", 1}}).value().size() == 2;
  };
  EXPECT_FALSE(unneeded(1));
  const JobRecord again = PlaceAgain();
  EXPECT_EQ(again.step, 5);
  EXPECT_FALSE(unneeded(1));
  EXPECT_FALSE(unneeded(2)) << "it may yet leave one";
  const DesiredRank next = Desired("n2");
  EXPECT_EQ(next.attempt.restore_step, 5);
  EXPECT_EQ(next.attempt.restore_uri, "file:///checkpoints/step-2");
  EXPECT_EQ(KeptStateFor(next.job, next.attempt).step, 5);
  EXPECT_EQ(KeptStateFor(next.job, next.attempt).attempt, job.attempt);
  Append(again, 0, "n1", Writer(again).Restored(5));
  EXPECT_FALSE(unneeded(1)) << "it has made no step from there";
  Append(again, 0, "n1", Writer(again).Train(6));
  EXPECT_TRUE(unneeded(1));
  ExpectGaplessFeed(job.uid);
}

// Each has a share, and they are told of one another once it is known of all whether they are left.
TEST_P(SecondOwnerSuite, WhoIsLeftIsKnownOnceAllHaveEndedOrSaidSo) {
  const JobRecord job = RunOnThree();
  const auto survivors = [&] { return SurvivorsOf(Desired("n3").attempt); };
  Append(job, 0, "n1", Writer(job).Train(1));
  Append(job, 2, "n3", Writer(job, 2).Add(LeftAlone()));
  EXPECT_EQ(survivors(), std::vector<int>());
  Append(job, 0, "n1", Writer(job).Add(LeftAlone()));
  EXPECT_EQ(survivors(), std::vector<int>()) << "rank 1 may yet have its share";
  const int64_t version = Get("a").version;
  EXPECT_EQ(*scheduler().Apply(Lead(), {.lost_nodes = {Stands("n2")}}), 1);
  EXPECT_EQ(survivors(), (std::vector<int>{0, 2}));
  EXPECT_GT(Get("a").version, version) << "their agents are told";
  Append(job, 0, "n1", Writer(job).Exited(77));
  EXPECT_EQ(survivors(), (std::vector<int>{2}));
  Append(job, 2, "n3", Writer(job, 2).Train(1).Train(2).Keeps(2).Exited(77));
  EXPECT_EQ(Get("a").resize->kept_step, 2);
}

TEST_P(SecondOwnerSuite, ANodeThatIsLostLeavesTheOthersTheirState) {
  const JobRecord job = RunOnThree();
  Append(job, 0, "n1", Writer(job).Train(1));
  EXPECT_EQ(*scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}), 1);
  EXPECT_TRUE(Desired("n2").suspend);
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone()).Train(1).Train(2).Keeps(2).Exited(77));
  Append(job, 2, "n3", Writer(job, 2).Fails(true, "PEER").Exited(77));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").reason.code, reason::kNodeLost);
  EXPECT_EQ(Get("a").resize->kept_step, 2);
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{1, 2}));
}

// Ranks of a job that did not ask for it, that had not begun, or whose job ends for good, and those
// that fail by themselves, are killed at once.
TEST_P(SecondOwnerSuite, NothingIsLeftWhereItIsOfNoUse) {
  const JobRecord job = RunOnThree(false);
  Append(job, 0, "n1", Writer(job).Train(1).Exited(0, 9));
  EXPECT_FALSE(IsDesired("n2"));
  // Whatever it says.
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone()).Keeps(9).Exited(77));
  EXPECT_FALSE(Get("a").resize.has_value());
  Append(job, 2, "n3", Writer(job, 2).Exited(0, 9));
  EXPECT_EQ(fleet().FindUnneeded({{job.uid, 1}})->size(), 1u);
}

TEST_P(SecondOwnerSuite, AFailureForGoodOrACancelEndsThemAtOnce) {
  const JobRecord job = RunOnThree();
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone()));
  EXPECT_TRUE(Desired("n3").suspend);
  Append(job, 0, "n1", Writer(job).Fails(false, "NUMERIC"));
  EXPECT_FALSE(IsDesired("n2"));
  EXPECT_FALSE(IsDesired("n3"));
}

TEST_P(SecondOwnerSuite, ACancelEndsThemAtOnce) {
  const JobRecord job = RunOnThree();
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone()));
  EXPECT_TRUE(Desired("n3").suspend);
  ASSERT_TRUE(jobs().Cancel({"default", "a"}, 0, {reason::kCancelledByUser, "c"}).ok());
  EXPECT_FALSE(IsDesired("n2"));
  EXPECT_FALSE(IsDesired("n3"));
}

TEST_P(SecondOwnerSuite, ARankThatCannotTellAllThatIsMissingLeavesNothing) {
  const JobRecord job = RunOnThree();
  Append(job, 0, "n1", Writer(job).Train(1).Train(2).Exited(0, 9));
  // It has forgotten the metrics of step 3.
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone(3)).Train(9).Keeps(9).Exited(77));
  EXPECT_FALSE(Get("a").resize.has_value());
  Append(job, 2, "n3", Writer(job, 2).Add(LeftAlone(2)).Train(3).Keeps(3).Exited(77));
  EXPECT_EQ(Get("a").resize->kept_step, 3);
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{1, 2, 3}));
}

// Others may not report metrics, and nobody a step that the job does not have.
TEST_P(SecondOwnerSuite, OnlyARankThatIsLeftAloneSpeaksForRankZero) {
  const JobRecord job = RunOnThree();
  EventWriter wrong = Writer(job, 1);
  const std::vector<RankEventRecord> metrics = wrong.Train(1).Take();
  EXPECT_FALSE(fleet().AppendEvents({"n2", {job.uid, job.attempt, 1}, metrics}).ok());
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone()).Train(1'000'000).Keeps(1'000'000));
  EXPECT_FALSE(Get("a").resize.has_value() && Get("a").resize->kept_step > 0);
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{}));
}

// The others of that node are killed then.
TEST_P(SecondOwnerSuite, OneRankOfANodeLeavesTheState) {
  Register("n1");
  Register("n2");
  JobRecord job = NewJob("a", 4);
  job.second_owner = true;
  ASSERT_TRUE(jobs().Submit(job).ok());
  ASSERT_EQ(Place(Get("a"), {"n1", "n1", "n1", "n2"}, {0, 1, 2, 0}), 1);
  job = Get("a");
  for (int rank = 0; rank < 4; ++rank) {
    Append(job, rank, rank < 3 ? "n1" : "n2", Writer(job, rank).Restored(0));
  }
  Append(job, 0, "n1", Writer(job).Train(1));
  const auto leaves = [&] {  // on n1
    std::vector<int> ranks;
    const std::vector<DesiredRank> desired = fleet().ReadDesired("n1").value();
    for (const DesiredRank& one : desired) {
      EXPECT_TRUE(one.suspend);
      if (Stays(one) == StateStays::kHereAlone) ranks.push_back(one.rank.id.rank);
    }
    return ranks;
  };
  Append(job, 3, "n2", Writer(job, 3).Exited(0, 9));
  EXPECT_EQ(leaves(), (std::vector<int>{0, 1, 2})) << "the agent chooses";
  Append(job, 1, "n1", Writer(job, 1).Add(LeftAlone()).Exited(0, 9));
  EXPECT_EQ(leaves(), (std::vector<int>{0, 2}));
  Append(job, 2, "n1", Writer(job, 2).Add(LeftAlone()).Train(1).Keeps(1));
  EXPECT_EQ(leaves(), std::vector<int>{2}) << "rank 0 is of no use any more";
  EXPECT_EQ(Get("a").resize->ranks, (std::vector<RankSlots>{{"n1", {2}}}));
}

// What an attempt had begun with is not left again, or it would be tried for ever.
TEST_P(SecondOwnerSuite, AStateIsTriedTwiceHoweverOftenItIsLeft) {
  const JobRecord job = RunOnThree();
  Append(job, 0, "n1", Writer(job).Train(1).Exited(0, 9));
  Append(job, 1, "n2", Writer(job, 1).Add(LeftAlone()).Train(1).Keeps(1).Exited(77));
  Append(job, 2, "n3", Writer(job, 2).Exited(0, 9));
  const JobRecord again = PlaceAgain();
  ASSERT_EQ(again.step, 1);
  for (int rank = 0; rank < 3; ++rank) {
    Append(again, rank, absl::StrCat("n", rank + 1), Writer(again, rank).Restored(1));
  }
  Append(again, 0, "n1", Writer(again).Exited(0, 9));
  Append(again, 1, "n2", Writer(again, 1).Add(LeftAlone()).Keeps(1).Exited(77));
  Append(again, 2, "n3", Writer(again, 2).Exited(0, 9));
  EXPECT_EQ(Get("a").resize->attempt, 1);
  EXPECT_EQ(Get("a").resize->kept_step, 1) << "nobody has made a step from there";
  EXPECT_EQ(fleet().FindUnneeded({{job.uid, 1}})->size(), 0u);
  const JobRecord third = PlaceAgain();
  EXPECT_EQ(third.step, 1);
  for (int rank = 0; rank < 3; ++rank) {
    Append(third, rank, absl::StrCat("n", rank + 1), Writer(third, rank).Exited(0, 9));
  }
  EXPECT_EQ(PlaceAgain().step, 0) << "it was tried twice";
}

INSTANTIATE_TEST_SUITE_P(Stores, SecondOwnerSuite, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
