// What a pass does about sick nodes, poisoned jobs, starts that hang, and nodes that failed a job.

#include "server/scheduler/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scheduler/explain.h"
#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Pass PlanOf(const Snapshots& s) { return PlanPass(s.snapshot, PlannerOptions{}); }

std::string PlacedOn(const Snapshots& s, const std::string& uid) {
  for (const Placement& placement : PlanOf(s).decisions.placements) {
    if (placement.job_uid == uid) return placement.ranks[0].node;
  }
  return "";
}

JobRecord& Job(Snapshots& s, size_t index) { return s.snapshot.jobs[index]; }

NodeFailure Loss(const std::string& uid, int minutes_ago) {
  return {.job_uid = uid,
          .job_id = uid,
          .attempt = 1,
          .category = "LOST",
          .time = TestNow() - absl::Minutes(minutes_ago)};
}

TEST(AvoidedNode, IsLeftToOthersAsLongAsAnotherCouldTakeTheJob) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 1}).Node({.name = "b", .cpu = 1}).Queued({.id = "j"});
  EXPECT_EQ(PlacedOn(s, "uid-j"), "a");
  Job(s, 0).avoid_node = "a";
  EXPECT_EQ(PlacedOn(s, "uid-j"), "b");
  s.Running({.id = "r"}, "b", {0});
  EXPECT_EQ(PlacedOn(s, "uid-j"), "") << "it waits for b";
  const Description description = Describe(s.snapshot, {}, "uid-j");
  EXPECT_THAT(description.reason.message, AllOf(HasSubstr("not on nodes/a, which failed it last"),
                                                HasSubstr("0 of 1 are free")));
  s.Queued({.id = "k"});
  EXPECT_EQ(PlacedOn(s, "uid-k"), "a") << "what it does not want, it does not keep";
}

TEST(AvoidedNode, IsUsedWhenNoOtherCouldTakeTheJob) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 2}).Node({.name = "b", .cpu = 1}).Queued({.id = "j", .slots = 2});
  Job(s, 0).avoid_node = "a";
  EXPECT_EQ(PlacedOn(s, "uid-j"), "a");
  EXPECT_THAT(PlanOf(s).decisions.placements[0].reason.message,
              HasSubstr("a failed it last, but no other node could take it"));
}

// It goes on from there; but where it runs well comes first.
TEST(NodeWithTheState, IsTakenBeforeItsEquals) {
  Snapshots s;
  for (const char* name : {"a", "b", "c"}) s.Node({.name = name, .cpu = 2});
  const auto placed = [&s](int slots) {
    Job(s, 0).min_slots = Job(s, 0).max_slots = slots;
    const Pass pass = PlanOf(s);
    std::string on;
    for (const auto& rank : pass.decisions.placements.at(0).ranks) on += rank.node;
    return on;
  };
  s.Queued({.id = "j"});
  EXPECT_EQ(placed(1) + " " + placed(2) + " " + placed(3), "a aa aab");
  Job(s, 0).attempt = 1;
  for (const std::string near : {"b", "c"}) {
    Job(s, 0).resize = {.attempt = 1, .ranks = {{near, {0}}}, .kept_step = 7};
    EXPECT_EQ(placed(1) + " " + placed(2) + " " + placed(3),
              near + " " + near + near + " " + near + near + "a");
  }
  Job(s, 0).avoid_node = "c";
  EXPECT_EQ(placed(1), "c") << "it failed there, and its state is nowhere else";
  Job(s, 0).resize->ranks.push_back({"b", {0}});
  EXPECT_EQ(placed(1), "b");
  Job(s, 0).avoid_node.clear();
  s.Node({.name = "d", .cpu = 3});
  EXPECT_EQ(placed(3), "ddd") << "on one node rather than near its state";
  Job(s, 0).attempt = 3;
  EXPECT_EQ(placed(1), "a") << "that state was tried twice";
}

// A job before it that avoids the node for good waits for another one, and no reason of that one is
// its own.
TEST(NodeWithTheState, IsTakenAlsoBehindAJobThatAvoidsIt) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 1}).Node({.name = "b", .cpu = 1}).Running({.id = "r"}, "b", {0});
  s.Queued({.id = "i", .age_seconds = 9}).Queued({.id = "j"});
  for (const size_t job : {1, 2}) {
    Job(s, job).attempt = 1;
    Job(s, job).avoid_node = "a";
  }
  EXPECT_EQ(PlacedOn(s, "uid-j"), "");
  Job(s, 2).resize = {.attempt = 1, .ranks = {{"a", {0}}}, .kept_step = 7};
  EXPECT_EQ(PlacedOn(s, "uid-j"), "a");
  EXPECT_EQ(PlacedOn(s, "uid-i"), "");
}

TEST(AvoidedNode, IsToldByExplain) {
  Snapshots s;
  s.Node({.name = "a", .cpu = 1}).Node({.name = "b", .cpu = 1}).Queued({.id = "j"});
  s.Running({.id = "r"}, "b", {0});
  Job(s, 0).avoid_node = "a";
  const Explanation explanation = Explain(Job(s, 0), {}, s.snapshot, {});
  EXPECT_THAT(explanation.details,
              Contains(HasSubstr("nodes/a: failed it last, and others could take it")));
}

TEST(SickNode, IsCordonedAndTakesNothingInTheSamePass) {
  Snapshots s;
  for (const char* name : {"a", "b", "c", "d"}) s.Node({.name = name, .cpu = 1});
  s.snapshot.nodes[0].failures = {Loss("x", 30), Loss("y", 20), Loss("z", 10)};
  s.Queued({.id = "j"});
  const Pass pass = PlanOf(s);
  ASSERT_EQ(pass.decisions.cordons.size(), 1u);
  EXPECT_EQ(pass.decisions.cordons[0].name, "a");
  EXPECT_EQ(PlacedOn(s, "uid-j"), "b");
}

class HangingStart : public ::testing::Test {
 protected:
  HangingStart() {
    s_.Node({.name = "n", .cpu = 2}).Running({.id = "j"}, "n", {0, 1}, JobState::kStarting);
    s_.snapshot.nodes[0].report.disk_free_bytes = int64_t{5} << 30;
    attempt().ranks[1].state = RankState::kAssigned;
    attempt().start_by = TestNow();
  }
  AttemptRecord& attempt() { return s_.snapshot.attempts[0]; }

  Snapshots s_;
};

TEST_F(HangingStart, FailsTheFirstRankThatHasNotBegunAndSaysWhatItsNodeSaid) {
  const Pass pass = PlanOf(s_);
  ASSERT_EQ(pass.decisions.failed_starts.size(), 1u);
  const FailureRecord& failure = pass.decisions.failed_starts[0].failure;
  EXPECT_EQ(failure.category, kStartCategory);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.node, "n");
  EXPECT_TRUE(failure.retryable);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("its worker has not been heard of"),
                                     HasSubstr("nodes/n said last: 5.0 GiB of disk are free")));
}

TEST_F(HangingStart, HasUntilItsDeadline) {
  attempt().start_by = TestNow() + absl::Seconds(3);
  const Pass pass = PlanOf(s_);
  EXPECT_THAT(pass.decisions.failed_starts, IsEmpty());
  EXPECT_EQ(pass.next, TestNow() + absl::Seconds(3));
}

TEST_F(HangingStart, IsEndedOnce) {
  attempt().ranks[0].outcome = RankOutcome::kFailed;
  EXPECT_THAT(PlanOf(s_).decisions.failed_starts, IsEmpty());
}

TEST_F(HangingStart, IsToldByExplainWhileItWaits) {
  const Explanation explanation =
      Explain(s_.snapshot.jobs[0], {attempt()}, s_.snapshot, PlannerOptions{});
  EXPECT_THAT(explanation.reason.message, HasSubstr("1 of 2 ranks have not begun"));
  EXPECT_THAT(explanation.details, Contains(HasSubstr("rank 1 on nodes/n: its worker")));
}

class LostUnderAJob : public ::testing::Test {
 protected:
  LostUnderAJob() {
    s_.Node({.name = "n", .cpu = 2}).Queued({.id = "bad"}).Running({.id = "b"}, "n", {0});
    s_.snapshot.nodes[0].failures = {Loss("uid-bad", 5)};
    s_.snapshot.attempts[0].create_time = TestNow() - absl::Minutes(1);
    Job(s_, 0).max_restarts = 3;
  }
  Snapshots s_;
};

TEST_F(LostUnderAJob, IsChargedOnceAnotherRunsThere) {
  const Pass pass = PlanOf(s_);
  ASSERT_EQ(pass.decisions.charges.size(), 1u);
  EXPECT_EQ(pass.decisions.charges[0].job_uid, "uid-bad");
  EXPECT_EQ(pass.decisions.charges[0].node, "n");
  EXPECT_EQ(pass.decisions.charges[0].survivor, "projects/default/jobs/b");
  s_.snapshot.nodes[0].failures[0].charged = true;
  EXPECT_THAT(PlanOf(s_).decisions.charges, IsEmpty());
}

// Else its placement would be refused for its version, and "behind" would have the only slot.
TEST_F(LostUnderAJob, IsChargedBeforeAnybodyIsPlaced) {
  s_.Queued({.id = "behind"});
  const Pass pass = PlanOf(s_);
  EXPECT_EQ(pass.decisions.charges.size(), 1u);
  EXPECT_THAT(pass.decisions.placements, IsEmpty());
  EXPECT_EQ(pass.next, TestNow());
  s_.snapshot.nodes[0].failures[0].charged = true;
  const Pass next = PlanOf(s_);
  ASSERT_EQ(next.decisions.placements.size(), 1u);
  EXPECT_EQ(next.decisions.placements[0].job_uid, "uid-bad");
}

TEST_F(LostUnderAJob, IsFreeWhileNobodyElseHasBegunThereSince) {
  s_.snapshot.attempts[0].create_time = TestNow() - absl::Minutes(6);
  EXPECT_THAT(PlanOf(s_).decisions.charges, IsEmpty()) << "it was placed before the loss";
  s_.snapshot.attempts[0].create_time = TestNow() - absl::Minutes(1);
  s_.snapshot.attempts[0].ranks[0].state = RankState::kAssigned;
  EXPECT_THAT(PlanOf(s_).decisions.charges, IsEmpty()) << "it has made no step";
  s_.snapshot.attempts[0].ranks[0].state = RankState::kRunning;
  s_.snapshot.nodes[0].failures[0].job_uid = "uid-b";
  EXPECT_THAT(PlanOf(s_).decisions.charges, IsEmpty()) << "it is the same job";
}

TEST_F(LostUnderAJob, IsNotChargedToAJobThatRunsWithoutRestartsLeft) {
  Job(s_, 0).restarts = 3;
  EXPECT_EQ(PlanOf(s_).decisions.charges.size(), 1u) << "it waits, and will fail";
  Job(s_, 0).state = JobState::kRunning;
  EXPECT_THAT(PlanOf(s_).decisions.charges, IsEmpty());
}

}  // namespace
}  // namespace trainyard
