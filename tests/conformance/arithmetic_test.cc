// The rule by which a job is placed, and the arithmetic that it is bound to.

#include "storage/records/reason_codes.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

const Arithmetic kTold = {{"caches", "32 KiB"}, {"device", "CPU"}, {"loops", "avx2"}};
constexpr char kBoundTo[] = "device: CPU; loops: avx2";

class ArithmeticSuite : public StoreSuite {
 protected:
  JobRecord Start(const std::string& id, ArithmeticRule rule, int slot = 0) {
    Register("n1", 8);
    JobRecord job = NewJob(id);
    job.arithmetic_rule = rule;
    job.group_ranks = 2;
    EXPECT_TRUE(jobs().Submit(job).ok());
    EXPECT_EQ(Get(id).arithmetic_rule, rule);
    EXPECT_EQ(Place(Get(id), {"n1"}, {slot}), 1);
    return Get(id);
  }

  EventWriter& Begins(const JobRecord& job) {
    return Writer(job).Add(RankStarted{1, "cpu x2"}).Add(RankRestored{0, kTold});
  }

  // As the leader reads it.
  JobRecord Seen(const std::string& uid, const ChangePosition& since = "") {
    const auto changes = scheduler().ReadChanges(since, false);
    for (const JobRecord& job : changes->jobs) {
      if (job.uid == uid) return job;
    }
    return {};
  }
};

TEST_P(ArithmeticSuite, AJobIsBoundWithItsFirstStepAndTheLeaderIsTold) {
  const JobRecord job = Start("a", ArithmeticRule::kSame);
  const ChangePosition before = scheduler().ReadChanges("", false)->position;
  Append(job, 0, "n1", Begins(job));
  EXPECT_EQ(Get("a").state, JobState::kRunning);
  EXPECT_EQ(Get("a").arithmetic, kBoundTo);
  EXPECT_EQ(Seen(job.uid, before).arithmetic, kBoundTo);
  EXPECT_EQ(Seen(job.uid).arithmetic_rule, ArithmeticRule::kSame);
  bool found = false;
  const auto snapshot = scheduler().ReadSnapshot();
  for (const JobRecord* one : JobsOf(*snapshot)) {
    found |= one->uid == job.uid && one->arithmetic == kBoundTo;
  }
  EXPECT_TRUE(found);
}

TEST_P(ArithmeticSuite, OfAGroupOfReportsEachJobIsBoundByItself) {
  const std::vector<JobRecord> running = {Start("a", ArithmeticRule::kSame, 0),
                                          Start("b", ArithmeticRule::kAny, 1),
                                          Start("c", ArithmeticRule::kSame, 2)};
  std::vector<RankEvents> group;
  for (const JobRecord& job : running) {
    EventWriter& writer = Begins(job);
    if (job.job_id == "c") writer.Train(1).Finished(1).Exited();  // it ends with the same report
    group.push_back({"n1", {job.uid, 1, 0}, writer.Take()});
  }
  for (const auto& answer : fleet().AppendGroup(group)) ASSERT_TRUE(answer.ok());
  EXPECT_EQ(Get("a").arithmetic, kBoundTo);
  EXPECT_EQ(Get("b").arithmetic, "");
  EXPECT_EQ(Get("c").state, JobState::kSucceeded);
  EXPECT_EQ(Get("c").arithmetic, kBoundTo);
  EXPECT_EQ(Get("c").arithmetic_rule, ArithmeticRule::kSame);
}

TEST_P(ArithmeticSuite, ABoundJobStaysBoundThroughFailuresAndItsEnd) {
  const JobRecord job = Start("a", ArithmeticRule::kSame);
  Append(job, 0, "n1", Begins(job).Train(1).Fails(true).Exited(71));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").arithmetic, kBoundTo);
  ASSERT_TRUE(jobs().Cancel({"default", "a"}, 0, {reason::kCancelledByUser, "c"}).ok());
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  EXPECT_EQ(Get("a").arithmetic, kBoundTo);
  ASSERT_TRUE(jobs().Resume({"default", "a"}, 0, {reason::kResumedByUser, "r"}).ok());
  EXPECT_EQ(Get("a").arithmetic, kBoundTo);
  EXPECT_EQ(Seen(job.uid).arithmetic_rule, ArithmeticRule::kSame);
  EXPECT_EQ(Seen(job.uid).group_ranks, 2);
}

INSTANTIATE_TEST_SUITE_P(Stores, ArithmeticSuite, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
