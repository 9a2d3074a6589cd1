// What a run decides, and what it remembers for that.

#include "executor/engine/policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "executor/engine/checkpoint/retention.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInf = std::numeric_limits<double>::infinity();

v1::EarlyStopping Patience(int patience, double min_delta = 0,
                           v1::Evaluation::Mode mode = v1::Evaluation::MIN) {
  v1::EarlyStopping policy;
  policy.set_metric("loss");
  policy.set_mode(mode);
  policy.set_patience(patience);
  policy.set_min_delta(min_delta);
  return policy;
}

// The number of the evaluation after which a run with these values stops, or 0.
int StopsAfter(const v1::EarlyStopping& policy, const std::vector<double>& values) {
  EarlyStoppingState state;
  for (size_t i = 0; i < values.size(); ++i) {
    TakeValue(policy, {.step = static_cast<int64_t>(i + 1), .value = values[i]}, state);
    if (!StopsEarly(policy, state).empty()) return static_cast<int>(i) + 1;
  }
  return 0;
}

TEST(EarlyStopping, WaitsForThePatienceInARow) {
  EXPECT_EQ(StopsAfter(Patience(2), {3, 2, 2, 1, 1, 1}), 6);
  EXPECT_EQ(StopsAfter(Patience(1), {3, 2, 2}), 3);
  EXPECT_EQ(StopsAfter(Patience(3), {3, 3, 3}), 0);
  EXPECT_EQ(StopsAfter(Patience(2, 0, v1::Evaluation::MAX), {1, 2, 3, 2, 3}), 5);
}

TEST(EarlyStopping, ASmallChangeIsNoImprovement) {
  EXPECT_EQ(StopsAfter(Patience(2, 0.5), {3, 2.6, 2.5, 2.4}), 3);  // 2.4 would have been one
  EXPECT_EQ(StopsAfter(Patience(2, 0.5), {3, 2.6, 2.4, 2.3}), 0);
  EXPECT_EQ(StopsAfter(Patience(1, 0.5, v1::Evaluation::MAX), {3, 3.6, 4.1}), 3);
}

TEST(EarlyStopping, WhatIsNotFiniteIsNoImprovement) {
  EXPECT_EQ(StopsAfter(Patience(2), {NAN, -kInf}), 2);
  EXPECT_EQ(StopsAfter(Patience(2), {NAN, 1, kInf, NAN}), 4);
}

TEST(EarlyStopping, SaysWhatTheBestWas) {
  EarlyStoppingState state;
  TakeValue(Patience(1), {100, 0.25}, state);
  TakeValue(Patience(1), {200, 0.5}, state);
  EXPECT_EQ(StopsEarly(Patience(1), state),
            "early stopping: loss of the held-out split was not better than 0.25 (step 100) in 1 "
            "evaluation");
}

std::vector<int64_t> StepsOf(const std::vector<Score>& scores) {
  std::vector<int64_t> steps;
  for (const Score& score : scores) steps.push_back(score.step);
  return steps;
}

TEST(BestCheckpoints, TheEarlierOfEqualsStays) {
  v1::BestCheckpoints policy;
  policy.set_mode(v1::Evaluation::MAX);
  policy.set_keep(2);
  std::vector<Score> best;
  EXPECT_TRUE(EnterBest(policy, {1, 0.5}, best));
  EXPECT_TRUE(EnterBest(policy, {2, 0.7}, best));
  EXPECT_FALSE(EnterBest(policy, {3, 0.5}, best));
  EXPECT_THAT(StepsOf(best), ElementsAre(2, 1));
  EXPECT_FALSE(EnterBest(policy, {4, NAN}, best));
  EXPECT_FALSE(EnterBest(policy, {5, kInf}, best));
  EXPECT_TRUE(EnterBest(policy, {6, 0.7}, best));
  EXPECT_THAT(StepsOf(best), ElementsAre(2, 6));
  policy.set_keep(1);  // of a job that goes on with another spec
  EXPECT_TRUE(EnterBest(policy, {7, 0.9}, best));
  EXPECT_THAT(StepsOf(best), ElementsAre(7));
}

TEST(Rollback, GoesOnAfterTheBatchThatFailed) {
  // Steps 11 to 13 took batches 10 to 12, and step 13 failed.
  const RunState first = AfterRollback({}, 12, {}, 10);
  EXPECT_EQ(first.rollbacks, 1);
  EXPECT_THAT(first.skips, ElementsAre(data::Skip{10, 3}));
  EXPECT_EQ(data::BatchOfStep(9, first.skips), 9);
  EXPECT_EQ(data::BatchOfStep(10, first.skips), 13);
  // It failed again after step 11: no batch is met twice.
  const RunState second = AfterRollback(first, 11, {}, 10);
  EXPECT_EQ(second.rollbacks, 2);
  EXPECT_EQ(data::BatchOfStep(10, second.skips), 15);
  // Then further back, whose checkpoint knows of none of this.
  const RunState third = AfterRollback(second, 10, {}, 5);
  EXPECT_EQ(third.rollbacks, 3);
  EXPECT_THAT(third.skips, ElementsAre(data::Skip{5, 11}));
  EXPECT_EQ(data::BatchOfStep(10, third.skips), 21);
}

TEST(Rollback, KeepsWhatWasRememberedThen) {
  RunState then;
  then.early_stopping.waited = 2;
  then.best = {{5, 1.0}};
  RunState now = then;
  now.best = {{8, 0.5}};
  const RunState after = AfterRollback(now, 9, then, 6);
  EXPECT_EQ(after.early_stopping, then.early_stopping);
  EXPECT_EQ(after.best, then.best);
}

TEST(Rollback, WhereARunWasSuspendedDoesNotDecide) {
  v1::JobSpec spec;
  spec.mutable_checkpoint()->set_every_steps(10);
  RunState state;
  state.best = {{14, 0.1}};
  EXPECT_THAT(RollbackTargets({10, 14, 17, 20, 23, 30}, 25, spec, state), ElementsAre(20, 14, 10));
  spec.mutable_checkpoint()->set_every_steps(0);
  EXPECT_THAT(RollbackTargets({10, 17}, 25, spec, {}), IsEmpty());
}

TEST(Rollback, FailingAgainGoesOneFurtherBack) {
  v1::JobSpec spec;
  spec.mutable_checkpoint()->set_every_steps(10);
  RunState state;
  state.skips = {{20, 5}};
  EXPECT_THAT(RollbackTargets({10, 20}, 25, spec, state), ElementsAre(10));
  EXPECT_THAT(RollbackTargets({20}, 25, spec, state), ElementsAre(20));
  EXPECT_THAT(RollbackTargets({10, 20, 30}, 35, spec, state), ElementsAre(30, 20, 10));
}

TEST(Retention, KeepsTheBestAndWhatARollbackNeeds) {
  v1::JobSpec spec;
  spec.mutable_checkpoint()->set_every_steps(10);
  RunState state;
  state.best = {{15, 0.1}};
  const std::vector<int64_t> present = {10, 15, 20, 30, 31, 32};
  EXPECT_THAT(StepsKeptBesidesNewest(present, 32, spec, state), ElementsAre(15));
  spec.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  EXPECT_THAT(StepsKeptBesidesNewest(present, 32, spec, state), ElementsAre(15, 30, 20));
  EXPECT_THAT(StepsToRemove(present, 32, 2, StepsKeptBesidesNewest(present, 32, spec, state), {}),
              ElementsAre(10));
}

TEST(RunState, ReadsBackAsWritten) {
  StateFile file{.step = 7, .seed = 1u << 31, .spec_digest = "d", .next_sample = 80};
  const std::string plain = StateToJson(file);
  EXPECT_THAT(plain, ::testing::Not(HasSubstr("best")));
  EXPECT_EQ(StateFromJson(plain)->run, RunState{});
  file.run.rollbacks = 2;
  file.run.skips = {{5, 3}, {6, 1}};
  file.run.early_stopping = {.best = Score{4, 1.0 / 3}, .waited = 2};
  file.run.best = {{4, 1.0 / 3}, {2, -1e-300}};
  const auto read = StateFromJson(StateToJson(file));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->run, file.run);
  EXPECT_EQ(read->seed, file.seed);
  EXPECT_EQ(read->next_sample, 80);
}

TEST(RunState, HostileFilesAreRefused) {
  const std::string head = R"({"step": 7, "seed": 1, "spec_digest": "d", "next_sample": 80)";
  ASSERT_TRUE(StateFromJson(head + "}").ok());
  std::string many = R"(, "best": [)";
  for (int i = 0; i < 1001; ++i) many += R"({"step": 1, "value": 1},)";
  many.back() = ']';
  for (const std::string& rest :
       {std::string(R"(, "skips": 3)"), std::string(R"(, "skips": [{"step": 1}])"),
        std::string(R"(, "skips": [{"step": -1, "batches": 1}])"),
        std::string(R"(, "skips": [{"step": 1, "batches": 0}])"),
        std::string(R"(, "skips": [{"step": 1, "batches": 72057594037927936}])"),
        std::string(R"(, "best": [{"step": 1, "value": null}])"),
        std::string(R"(, "early_stopping": {"waited": -1})"),
        std::string(R"(, "early_stopping": [])"), std::string(R"(, "rollbacks": "x")"), many}) {
    EXPECT_TRUE(absl::IsDataLoss(StateFromJson(head + rest + "}").status())) << rest.substr(0, 60);
  }
  EXPECT_TRUE(absl::IsDataLoss(StateFromJson("{").status()));
  EXPECT_TRUE(absl::IsDataLoss(StateFromJson(R"({"step": -7})").status()));
}

}  // namespace
}  // namespace trainyard::engine
