// What a job is bound to: change.h.

#include <gtest/gtest.h>

#include <vector>

#include "storage/records/change.h"

namespace trainyard {
namespace {

const absl::Time kNoon = absl::FromUnixSeconds(1'000'000);
const Arithmetic kWide = {{"caches", "32 KiB"}, {"device", "CPU"}, {"loops", "avx512"}};
const Arithmetic kNarrow = {{"device", "CPU"}, {"loops", "avx2"}};

// A job whose gang of `ranks` is about to restore.
struct Starting {
  JobRecord job;
  AttemptRecord attempt{.job_uid = "u", .attempt = 1};

  explicit Starting(ArithmeticRule rule, int ranks = 1) {
    job.uid = "u";
    job.attempt = 1;
    job.state = JobState::kStarting;
    job.total_steps = 100;
    job.arithmetic_rule = rule;
    for (int i = 0; i < ranks; ++i) attempt.ranks.push_back({.id = {"u", 1, i}, .node = "n"});
  }

  void Tell(int rank, decltype(RankEventRecord::what) what) {
    RankEventRecord event{.sequence = attempt.ranks[rank].acked_sequence + 1, .time = kNoon};
    event.what = std::move(what);
    absl::StatusOr<AttemptChange> change = TakeEvents(
        job, attempt, rank, {event}, [](int64_t, MetricSplit) { return false; }, kNoon);
    ASSERT_TRUE(change.ok()) << change.status();
    job = change->change.job;
    attempt = change->attempt;
  }
};

TEST(Bound, AJobOfOneArithmeticIsBoundToThatOfItsFirstStep) {
  Starting it(ArithmeticRule::kSame, 2);
  it.Tell(0, RankRestored{0, kWide});
  EXPECT_EQ(it.job.arithmetic, "") << "one rank is not there yet: nothing was computed";
  it.Tell(1, RankRestored{0, kWide});
  EXPECT_EQ(it.job.state, JobState::kRunning);
  EXPECT_EQ(it.job.arithmetic, "device: CPU; loops: avx512");
}

TEST(Bound, AJobOfAnyOtherRuleIsNot) {
  for (const ArithmeticRule rule :
       {ArithmeticRule::kUnknown, ArithmeticRule::kAny, ArithmeticRule::kSameInAttempt}) {
    Starting it(rule);
    it.Tell(0, RankRestored{0, kWide});
    EXPECT_EQ(it.job.state, JobState::kRunning);
    EXPECT_EQ(it.job.arithmetic, "") << ArithmeticRuleName(rule);
  }
}

TEST(Bound, WhatALaterAttemptTellsChangesNothing) {
  Starting it(ArithmeticRule::kSame);
  it.job.arithmetic = "device: CPU; loops: avx512";
  it.Tell(0, RankRestored{0, kNarrow});
  EXPECT_EQ(it.job.state, JobState::kRunning);
  EXPECT_EQ(it.job.arithmetic, "device: CPU; loops: avx512");
}

TEST(Bound, AWorkerThatDoesNotTellOrTellsNonsenseBindsToNothing) {
  const std::vector<Arithmetic> told = {{}, {{"a;b", "1"}}, {{"loops", ""}}, {{"caches", "1 KiB"}}};
  for (const Arithmetic& arithmetic : told) {
    Starting it(ArithmeticRule::kSame);
    it.Tell(0, RankRestored{0, arithmetic});
    EXPECT_EQ(it.job.state, JobState::kRunning);
    EXPECT_EQ(it.job.arithmetic, "");
  }
}

TEST(Bound, AStartThatFailsBindsToNothingAndANewJobIsFree) {
  Starting it(ArithmeticRule::kSame);
  it.job.max_restarts = 1;
  it.Tell(0, FailureRecord{.category = "DEVICE", .retryable = true});
  it.Tell(0, RankExited{.exit_code = 71});
  EXPECT_EQ(it.job.state, JobState::kQueued);
  EXPECT_EQ(it.job.arithmetic, "");

  JobRecord copy;
  copy.project = "default";
  copy.arithmetic_rule = ArithmeticRule::kSame;
  copy.arithmetic = "loops: avx2";
  const absl::StatusOr<JobChange> made = NewJob(copy, kNoon);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->job.arithmetic, "");
  EXPECT_EQ(made->job.arithmetic_rule, ArithmeticRule::kSame);
}

TEST(ArithmeticRules, HaveNamesThatCanBeReadBack) {
  for (const ArithmeticRule rule : {ArithmeticRule::kUnknown, ArithmeticRule::kAny,
                                    ArithmeticRule::kSameInAttempt, ArithmeticRule::kSame}) {
    EXPECT_EQ(ParseArithmeticRule(ArithmeticRuleName(rule)), rule);
  }
  EXPECT_FALSE(ParseArithmeticRule("SAME_ON_TUESDAYS").has_value());
}

}  // namespace
}  // namespace trainyard
