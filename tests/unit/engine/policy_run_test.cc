// Whole runs that end early, keep their best, or meet a step that is not finite.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "executor/plan/spec/metrics.h"
#include "executor/plan/spec/spec.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/in_threads.h"
#include "tests/unit/engine/late_device.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

enum class Where {
  kAtOnce,             // a device that is done when a launch returns
  kLate,               // one that goes on behind our back
  kTwoRanks,           // two of the first kind
  kTwoRanksThatShard,  // each with its share of the parameters alone
  kTwoRanksOfLayers,   // of a GPT with half of each layer, and its share of the optimizer's state
  kTwoStages,          // of a GPT with half of the layers
};

class PolicyRunTest : public ::testing::TestWithParam<Where> {
 protected:
  std::string Root(const std::string& name) { return folder_.path() + "/" + name; }

  std::vector<std::string> Names(const std::string& name) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Root(name))) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  Checkpoint Open(const std::string& root, int64_t step) {
    const auto store = MakeFileStore();
    return Checkpoint::Open(*store, absl::StrCat(root, "/", StepFolder(step)), "").value();
  }

  std::string WeightsOf(const std::string& root, int64_t step) {
    const auto store = MakeFileStore();
    const auto manifest =
        ReadVerifiedManifest(*store, absl::StrCat(root, "/", StepFolder(step)), "");
    return manifest.ok() ? manifest->weights_sha256 : std::string(manifest.status().message());
  }

  static absl::StatusOr<RunResult> RunHere(const v1::JobSpec& spec, const std::string& root,
                                           RecordingObserver& observer,
                                           std::optional<RestorePoint> restore = std::nullopt) {
    if (GetParam() == Where::kAtOnce) return RunOnCpu(spec, root, observer, std::move(restore));
    if (GetParam() != Where::kLate) return RunOnTwoRanks(spec, root, observer, restore);
    LateDevice device(1);
    return RunOn(device, spec, root, observer, std::move(restore));
  }

  // Returns what rank 0 does; the other ends in the same way.
  static absl::StatusOr<RunResult> RunOnTwoRanks(v1::JobSpec spec, const std::string& root,
                                                 RecordingObserver& observer,
                                                 const std::optional<RestorePoint>& restore) {
    spec.mutable_parallel()->set_logical_ranks(2);
    if (GetParam() == Where::kTwoRanksThatShard) {
      spec.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS);
      spec.mutable_resources()->set_device(v1::Resources::CPU);
      if (spec.model().has_dlrm() && spec.optimizer().has_adamw()) {  // some rows of each table
        spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
      }
    }
    const bool of_layers = GetParam() == Where::kTwoRanksOfLayers;
    if ((of_layers || GetParam() == Where::kTwoStages) && spec.model().has_gpt()) {
      spec.mutable_resources()->set_device(v1::Resources::CPU);
      spec.mutable_resources()->set_min_slots(2);
      spec.mutable_resources()->set_max_slots(2);
      v1::Parallel& parallel = *spec.mutable_parallel();
      parallel.set_shard(v1::Parallel::OPTIMIZER);
      of_layers ? parallel.set_tensor(2) : parallel.set_pipeline(2);
      of_layers ? parallel.mutable_layout()->set_tensor(2)
                : parallel.mutable_layout()->set_pipeline(2);
    }
    absl::StatusOr<RunResult> results[2] = {absl::InternalError(""), absl::InternalError("")};
    RecordingObserver other;
    InThreads(2, [&](Communicator& communicator) {
      const auto device = kernels::OpenCpu(1);
      ASSERT_TRUE(device.ok());
      const int rank = communicator.rank();
      results[rank] =
          RunOn(**device, spec, root, rank == 0 ? observer : other, restore, 1, &communicator);
    });
    EXPECT_EQ(results[0].ok(), results[1].ok()) << results[0].status() << results[1].status();
    if (results[0].ok() && results[1].ok()) {
      EXPECT_EQ(results[0]->step, results[1]->step);
      EXPECT_EQ(results[0]->suspended, results[1]->suspended);
    }
    EXPECT_EQ(RolledBack(results[0].status()), RolledBack(results[1].status()));
    EXPECT_TRUE(other.metrics.empty() && other.checkpoints.empty());
    return results[0];
  }

  // Where a run is left that is asked to stop when `reported` is: a step may be on its way.
  static int64_t StoppedAt(int64_t reported) {
    return GetParam() == Where::kLate ? reported + 1 : reported;
  }
  static int64_t StopFor(int64_t step) { return GetParam() == Where::kLate ? step - 1 : step; }

  // As trainyard-worker runs a job alone: on from the newest checkpoint, also after a rollback, and
  // stopped after each of `stops`. The last observer sees the end.
  absl::Status RunToEnd(const v1::JobSpec& spec, const std::string& root, RecordingObserver& seen,
                        std::vector<int64_t> stops = {}) {
    const auto store = MakeFileStore();
    for (;;) {
      RecordingObserver one;
      if (!stops.empty()) one.stop_at = stops.front();
      std::optional<RestorePoint> restore;
      const std::vector<int64_t> steps = ListSteps(*store, root).value();
      if (!steps.empty()) {
        restore = RestorePoint{absl::StrCat(root, "/", StepFolder(steps.back())), ""};
      }
      const auto result = RunHere(spec, root, one, restore);
      for (const auto& m : one.metrics) seen.metrics.push_back(m);
      seen.checkpoints.insert(seen.checkpoints.end(), one.checkpoints.begin(),
                              one.checkpoints.end());
      if (!result.ok() && RolledBack(result.status())) {
        rollbacks_.emplace_back(result.status().message());
        EXPECT_EQ(FaultOf(result.status()), Fault::kNumeric);
        EXPECT_TRUE(Retryable(result.status()));
        continue;
      }
      if (!result.ok()) return result.status();
      result_ = *result;
      if (!result->suspended) return absl::OkStatus();
      stops.erase(stops.begin());
    }
  }

  v1::JobSpec Poisoned() {
    v1::JobSpec spec = PoisonedClicks(folder_.path(), /*step=*/13);
    spec.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
    spec.mutable_checkpoint()->set_every_steps(5);
    return spec;
  }

  TempFolder folder_;
  std::vector<std::string> rollbacks_;
  RunResult result_;
};

std::string NameOf(Where where) {
  if (where == Where::kTwoRanks) return "two_ranks";
  if (where == Where::kTwoRanksThatShard) return "two_ranks_that_shard";
  if (where == Where::kTwoRanksOfLayers) return "two_ranks_of_layers";
  if (where == Where::kTwoStages) return "two_stages";
  return where == Where::kLate ? "late" : "at_once";
}

INSTANTIATE_TEST_SUITE_P(Devices, PolicyRunTest,
                         ::testing::Values(Where::kAtOnce, Where::kLate, Where::kTwoRanks,
                                           Where::kTwoRanksThatShard, Where::kTwoRanksOfLayers,
                                           Where::kTwoStages),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(PolicyRunTest, HaltNamesTheFirstOpAndLeavesTheLastGoodCheckpoint) {
  v1::JobSpec spec = Poisoned();
  spec.mutable_training()->set_on_non_finite(v1::Training::HALT);
  RecordingObserver seen;
  const absl::Status status = RunToEnd(spec, Root("r"), seen);
  EXPECT_EQ(FaultOf(status), Fault::kNumeric);
  EXPECT_FALSE(Retryable(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("step 13: first non-finite value: op 0 matmul \"bot_l.0\" forward, "
                        "micro-batch "));
  EXPECT_THAT(seen.TrainLosses(), SizeIs(12));
  EXPECT_THAT(Names("r"), UnorderedElementsAre("step-00000005", "step-00000010"));
}

TEST_P(PolicyRunTest, ARollbackGoesBackToACheckpointAndLeavesOutTheDataSince) {
  const v1::JobSpec spec = Poisoned();
  RecordingObserver seen;
  ASSERT_EQ(RunToEnd(spec, Root("r"), seen), absl::OkStatus());
  ASSERT_THAT(rollbacks_, SizeIs(1));
  EXPECT_THAT(rollbacks_[0], HasSubstr("step 13: first non-finite value: op 0 matmul"));
  EXPECT_THAT(rollbacks_[0],
              HasSubstr("back to step 10, leaving out the data of 3 steps (rollback 1 of 5)"));
  // Steps 11 and 12 were made twice, on other data.
  ASSERT_THAT(seen.TrainLosses(), SizeIs(12 + 14));
  EXPECT_NE(seen.TrainLosses()[10], seen.TrainLosses()[12]);
  const Checkpoint end = Open(Root("r"), 24);
  EXPECT_EQ(end.run.rollbacks, 1);
  EXPECT_THAT(end.run.skips, ElementsAre(data::Skip{10, 3}));
}

// Wherever it is stopped: before the poison, between checkpoint and poison, and after the rollback.
TEST_P(PolicyRunTest, ARollbackGivesTheSameBitsWhereverTheRunIsStopped) {
  const v1::JobSpec spec = Poisoned();
  RecordingObserver straight;
  ASSERT_EQ(RunToEnd(spec, Root("straight"), straight), absl::OkStatus());
  const std::string manifest = Open(Root("straight"), 24).manifest_sha256;
  int number = 0;
  for (const std::vector<int64_t>& stops :
       std::vector<std::vector<int64_t>>{{3}, {11}, {12}, {11, 12}, {12, 11}, {12, 13, 17}}) {
    const std::string root = Root(std::to_string(number++));
    RecordingObserver seen;
    ASSERT_EQ(RunToEnd(spec, root, seen, stops), absl::OkStatus());
    EXPECT_EQ(Open(root, 24).manifest_sha256, manifest) << number;
  }
}

// A crash right after the failed step: nothing of the rollback was written.
TEST_P(PolicyRunTest, ARollbackThatIsLostIsMadeAgain) {
  const v1::JobSpec spec = Poisoned();
  RecordingObserver first;
  ASSERT_FALSE(RunHere(spec, Root("r"), first).ok());
  EXPECT_THAT(first.removed, IsEmpty());
  std::filesystem::remove_all(Root("r") + "/step-00000010");  // only the older one is left
  RecordingObserver seen;
  ASSERT_EQ(RunToEnd(spec, Root("r"), seen), absl::OkStatus());
  RecordingObserver straight;
  ASSERT_EQ(RunToEnd(spec, Root("straight"), straight), absl::OkStatus());
  EXPECT_EQ(Open(Root("r"), 24).manifest_sha256, Open(Root("straight"), 24).manifest_sha256);
}

// Killed once the checkpoint was written anew and before that was reported: whoever restores knows
// the old one, and there is no older one.
TEST_P(PolicyRunTest, ARollbackThatWasNotReportedIsGoneOnFrom) {
  v1::JobSpec spec = Poisoned();
  spec.mutable_checkpoint()->set_every_steps(10);
  RecordingObserver first;
  ASSERT_TRUE(RolledBack(RunHere(spec, Root("r"), first).status()));
  ASSERT_THAT(first.checkpoints, SizeIs(2));
  ASSERT_EQ(first.checkpoints[0].uri, first.checkpoints[1].uri);
  const RestorePoint known{first.checkpoints[0].uri, first.checkpoints[0].manifest_sha256};
  RecordingObserver second;
  const auto result = RunHere(spec, Root("r"), second, known);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(second.restored_step, 10);
  EXPECT_THAT(second.warnings,
              ElementsAre(HasSubstr("was reported when it was written; it is whole and of this")));
  EXPECT_EQ(Open(Root("r"), 24).run.rollbacks, 1);
  RecordingObserver straight;
  ASSERT_EQ(RunToEnd(spec, Root("straight"), straight), absl::OkStatus());
  EXPECT_EQ(Open(Root("r"), 24).manifest_sha256, Open(Root("straight"), 24).manifest_sha256);
}

// Suspended after step 12, gone back to 10 by a worker that was killed before it removed that one.
TEST_P(PolicyRunTest, WhatARollbackAbandonedIsGoneOnceTheRunGoesOn) {
  v1::JobSpec spec = Poisoned();
  RecordingObserver first;
  first.stop_at = StopFor(12);
  ASSERT_TRUE(RunHere(spec, Root("r"), first).ok());
  RecordingObserver second;
  second.settle = false;  // nobody heard of the rollback in time
  const RestorePoint newest{Root("r") + "/step-00000012", ""};
  ASSERT_TRUE(RolledBack(RunHere(spec, Root("r"), second, newest).status()));
  EXPECT_THAT(second.removed, ElementsAre(newest.uri));
  EXPECT_TRUE(std::filesystem::exists(newest.uri));

  RecordingObserver third;
  third.stop_at = 12;
  const RestorePoint back{Root("r") + "/step-00000010", second.checkpoints[0].manifest_sha256};
  ASSERT_TRUE(RunHere(spec, Root("r"), third, back).ok());
  EXPECT_THAT(Names("r"),
              UnorderedElementsAre("step-00000005", "step-00000010", StepFolder(StoppedAt(12))));
}

// What an earlier attempt wrote past the restore point on the same way is met again.
TEST_P(PolicyRunTest, WhatAnEarlierAttemptWroteIsKept) {
  const v1::JobSpec spec = Poisoned();
  RecordingObserver first;
  first.stop_at = StopFor(12);
  ASSERT_TRUE(RunHere(spec, Root("r"), first).ok());
  RecordingObserver second;
  second.stop_at = 7;
  ASSERT_TRUE(
      RunHere(spec, Root("r"), second, RestorePoint{Root("r") + "/step-00000005", ""}).ok());
  EXPECT_THAT(Names("r"), UnorderedElementsAre("step-00000005", StepFolder(StoppedAt(7)),
                                               "step-00000010", "step-00000012"));
}

TEST_P(PolicyRunTest, TheLastReportOfARollbackIsWaitedFor) {
  const v1::JobSpec spec = Poisoned();
  RecordingObserver first;
  first.stop_at = StopFor(12);
  ASSERT_TRUE(RunHere(spec, Root("r"), first).ok());
  class Slow : public RecordingObserver {
   public:
    int64_t SettledReport() override { return asked_++ < 3 ? 0 : 1000; }

   private:
    std::atomic<int> asked_ = 0;
  } slow;
  const RestorePoint newest{Root("r") + "/step-00000012", ""};
  ASSERT_TRUE(RolledBack(RunHere(spec, Root("r"), slow, newest).status()));
  EXPECT_FALSE(std::filesystem::exists(newest.uri));
}

TEST_P(PolicyRunTest, WithoutCheckpointsARollbackGoesToTheStart) {
  v1::JobSpec spec = Poisoned();
  spec.mutable_checkpoint()->Clear();
  RecordingObserver seen;
  ASSERT_EQ(RunToEnd(spec, Root("r"), seen, {4}), absl::OkStatus());
  EXPECT_THAT(rollbacks_,
              ElementsAre(HasSubstr("back to step 0, leaving out the data of 13 steps")));
  EXPECT_THAT(Open(Root("r"), 24).run.skips, ElementsAre(data::Skip{0, 13}));
}

TEST_P(PolicyRunTest, ARunThatDivergesFailsOnceItsRollbacksAreUsedUp) {
  v1::JobSpec spec = SmallGpt(WriteText(folder_.path()), 50);
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_schedule()->Clear();
  spec.mutable_schedule()->set_learning_rate(1e30);
  spec.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  spec.mutable_training()->set_max_rollbacks(3);
  spec.mutable_checkpoint()->set_every_steps(1);
  RecordingObserver seen;
  const absl::Status status = RunToEnd(spec, Root("r"), seen);
  EXPECT_EQ(FaultOf(status), Fault::kNumeric);
  EXPECT_FALSE(Retryable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("; all 3 rollbacks are used up"));
  EXPECT_THAT(rollbacks_, SizeIs(3));
}

// Step 1 overflows in its update.
v1::JobSpec Exploding(const std::string& text, int64_t steps) {
  v1::JobSpec spec = SmallGpt(text, steps);
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_schedule()->Clear();
  spec.mutable_schedule()->set_learning_rate(1e39);
  spec.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  return spec;
}

TEST_P(PolicyRunTest, WeightsThatAreNotFiniteRollBackWhereverTheRunIsStopped) {
  const v1::JobSpec spec = Exploding(WriteText(folder_.path()), 4);
  for (const int64_t stop_at : {-1, 1}) {
    RecordingObserver seen;
    seen.stop_at = stop_at;
    const absl::Status status = RunHere(spec, Root(std::to_string(stop_at)), seen).status();
    EXPECT_TRUE(RolledBack(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("step 2: first non-finite value: as the update of step 1 left it"));
  }
  EXPECT_EQ(Open(Root("1"), 0).manifest_sha256, Open(Root("-1"), 0).manifest_sha256);
  // It went back to the start, whoever has which part of that.
  RecordingObserver alone;
  EXPECT_TRUE(RolledBack(RunOnCpu(spec, Root("alone"), alone).status()));
  EXPECT_EQ(WeightsOf(Root("1"), 0), WeightsOf(Root("alone"), 0));
}

TEST_P(PolicyRunTest, AFinalModelThatIsNotFiniteRollsBack) {
  RecordingObserver seen;
  const absl::Status status =
      RunHere(Exploding(WriteText(folder_.path()), 1), Root("r"), seen).status();
  EXPECT_TRUE(RolledBack(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("checkpoint of step 1: not written: element"),
                    HasSubstr("back to step 0, leaving out the data of 2 steps")));
}

// The last step's update overflows, and no step follows that would notice.
TEST_P(PolicyRunTest, AModelThatIsNotFiniteIsNeverWritten) {
  v1::JobSpec spec = Exploding(WriteText(folder_.path()), 1);
  spec.mutable_training()->set_on_non_finite(v1::Training::HALT);
  RecordingObserver seen;
  const absl::Status status = RunHere(spec, Root("r"), seen).status();
  EXPECT_EQ(FaultOf(status), Fault::kNumeric) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("checkpoint of step 1: not written: element"));
  EXPECT_THAT(seen.checkpoints, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(Root("r") + "/step-00000001"));
}

// Learns, then is driven apart by a learning rate that only grows.
v1::JobSpec Overfitting(const std::string& text) {
  v1::JobSpec spec = SmallGpt(text, 60);
  spec.mutable_schedule()->Clear();
  spec.mutable_schedule()->set_learning_rate(0.5);
  spec.mutable_schedule()->set_warmup_steps(50);
  spec.mutable_evaluation()->set_every_steps(4);
  return spec;
}

TEST_P(PolicyRunTest, EarlyStoppingEndsWithSuccessAndSaysWhy) {
  v1::JobSpec spec = Overfitting(WriteText(folder_.path()));
  spec.mutable_evaluation()->mutable_early_stopping()->set_patience(2);
  RecordingObserver straight;
  ASSERT_EQ(RunToEnd(spec, Root("straight"), straight), absl::OkStatus());
  const int64_t end = result_.step;
  EXPECT_LT(end, 60);
  EXPECT_EQ(end % 4, 0);
  EXPECT_THAT(result_.reason,
              HasSubstr("early stopping: loss of the held-out split was not better"));
  EXPECT_EQ(straight.checkpoints.back().step, end);

  // Stopped just before it would decide, and again when it has.
  RecordingObserver cut;
  ASSERT_EQ(RunToEnd(spec, Root("cut"), cut, {2, end - 1}), absl::OkStatus());
  EXPECT_EQ(result_.step, end);
  EXPECT_EQ(Open(Root("cut"), end).manifest_sha256, Open(Root("straight"), end).manifest_sha256);
  RecordingObserver again;
  ASSERT_EQ(RunToEnd(spec, Root("cut"), again), absl::OkStatus());
  EXPECT_THAT(again.metrics, IsEmpty());
  EXPECT_EQ(result_.step, end);
  EXPECT_THAT(result_.reason, HasSubstr("early stopping"));
}

TEST_P(PolicyRunTest, TheBestCheckpointsOutliveTheNewest) {
  v1::JobSpec spec = Overfitting(WriteText(folder_.path()));
  spec.mutable_checkpoint()->set_every_steps(10);
  v1::BestCheckpoints& best = *spec.mutable_checkpoint()->mutable_best();
  best.set_metric("accuracy");
  best.set_keep(2);
  RecordingObserver seen;
  ASSERT_EQ(RunToEnd(spec, Root("straight"), seen), absl::OkStatus());
  std::vector<std::pair<double, int64_t>> scores;  // best first; of equals the earlier
  for (const auto& m : seen.metrics) {
    if (m.split == RunObserver::Split::kValidation) {
      scores.emplace_back(-m.values.at("accuracy"), m.step);
    }
  }
  std::sort(scores.begin(), scores.end());
  ASSERT_LT(scores[0].second, 50);  // else it would be among the newest
  ASSERT_LT(scores[1].second, 50);
  EXPECT_THAT(Names("straight"),
              UnorderedElementsAre("step-00000050", "step-00000060", StepFolder(scores[0].second),
                                   StepFolder(scores[1].second)));
  const auto store = MakeFileStore();
  EXPECT_EQ(BestStep(*store, Root("straight")).value(), scores[0].second);
  EXPECT_EQ(Open(Root("straight"), scores[0].second).metrics.at("accuracy"), -scores[0].first);

  RecordingObserver cut;
  ASSERT_EQ(RunToEnd(spec, Root("cut"), cut, {7, scores[0].second + 1, 41}), absl::OkStatus());
  for (const int64_t step : {scores[0].second, scores[1].second, int64_t{60}}) {
    EXPECT_EQ(Open(Root("cut"), step).manifest_sha256, Open(Root("straight"), step).manifest_sha256)
        << step;
  }
}

// Something else is in the place of the best checkpoint, so that it cannot be written.
TEST_P(PolicyRunTest, ABestCheckpointThatCannotBeWrittenDoesNotCostTheOneBefore) {
  v1::JobSpec spec = Overfitting(WriteText(folder_.path()));
  v1::BestCheckpoints& policy = *spec.mutable_checkpoint()->mutable_best();
  policy.set_metric("accuracy");
  policy.set_keep(1);
  RecordingObserver seen;
  ASSERT_EQ(RunToEnd(spec, Root("straight"), seen), absl::OkStatus());
  const auto store = MakeFileStore();
  const int64_t best = BestStep(*store, Root("straight")).value();
  ASSERT_LT(best, 52);
  std::pair<double, int64_t> second;  // of equals the earlier
  for (const auto& m : seen.metrics) {
    if (m.split != RunObserver::Split::kValidation || m.step == best) continue;
    if (m.values.at("accuracy") > second.first) second = {m.values.at("accuracy"), m.step};
  }

  ASSERT_TRUE(store->Put(absl::StrCat(Root("r"), "/", StepFolder(best)), "in the way").ok());
  RecordingObserver blocked;
  ASSERT_TRUE(RunHere(spec, Root("r"), blocked).ok());
  EXPECT_THAT(blocked.failed_steps, ElementsAre(best));
  EXPECT_EQ(BestStep(*store, Root("r")).value(), second.second);
  EXPECT_EQ(Open(Root("r"), second.second).metrics.at("accuracy"), second.first);
}

// Names that a spec is checked against, and what is reported in the end.
TEST_P(PolicyRunTest, EvaluationReportsWhatPoliciesMayGoBy) {
  v1::JobSpec clicks = Poisoned();
  clicks.mutable_training()->set_steps(2);
  v1::JobSpec bert = SmallGpt(WriteDocuments(folder_.path()), 4);
  v1::Bert& model = *bert.mutable_model()->mutable_bert();
  model.set_layers(1);
  model.set_heads(2);
  model.set_width(8);
  model.set_context(9);
  int number = 0;
  for (const v1::JobSpec& spec : {SmallGpt(WriteText(folder_.path()), 4), clicks, bert}) {
    RecordingObserver seen;
    ASSERT_EQ(RunToEnd(spec, Root(std::to_string(number++)), seen), absl::OkStatus());
    const v1::JobSpec resolved = plan::ResolveSpec(spec).value();
    std::vector<std::string> reported, known;
    for (const auto& [name, value] : seen.metrics.back().values) reported.push_back(name);
    for (const plan::Metric& metric : plan::EvaluationMetrics(resolved))
      known.push_back(metric.name);
    EXPECT_THAT(reported, ::testing::UnorderedElementsAreArray(known));
  }
}

// Of the first held-out sample alone there is no pair of a click and another.
TEST_P(PolicyRunTest, APolicyWhoseMetricIsNotDefinedFailsAtOnce) {
  v1::JobSpec spec = Poisoned();
  spec.mutable_evaluation()->set_every_steps(1);
  spec.mutable_evaluation()->set_max_samples(1);
  v1::JobSpec best = spec;
  best.mutable_checkpoint()->mutable_best()->set_metric("auc");
  spec.mutable_evaluation()->mutable_early_stopping()->set_metric("auc");
  int number = 0;
  for (const v1::JobSpec& one : {spec, best}) {
    RecordingObserver seen;
    const absl::Status status = RunToEnd(one, Root(std::to_string(number++)), seen);
    EXPECT_EQ(FaultOf(status), Fault::kData) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(number == 1 ? "spec.evaluation.early_stopping.metric: auc"
                                            : "spec.checkpoint.best.metric: auc"),
                      HasSubstr("all are of one class; raise spec.evaluation.max_samples")));
    EXPECT_THAT(seen.TrainLosses(), SizeIs(1));
  }
}

TEST_P(PolicyRunTest, ARunWithoutABestSaysSo) {
  RecordingObserver seen;
  ASSERT_EQ(RunToEnd(SmallGpt(WriteText(folder_.path()), 4), Root("r"), seen), absl::OkStatus());
  const auto store = MakeFileStore();
  EXPECT_THAT(std::string(BestStep(*store, Root("r")).status().message()),
              HasSubstr("spec.checkpoint.best"));
  EXPECT_TRUE(absl::IsNotFound(BestStep(*store, Root("none")).status()));
}

}  // namespace
}  // namespace trainyard::engine
