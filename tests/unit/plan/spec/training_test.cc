// What spec.training may say, and the policies that go by evaluations.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/spec/bad_specs.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::HasSubstr;

const std::vector<BadSpec>& TrainingTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"no length", MlpSpec, [](auto& s) { s.mutable_training()->clear_steps(); }, kInvalid,
       "spec.training.steps: is missing; give steps or epochs"},
      {"both", MlpSpec, [](auto& s) { s.mutable_training()->set_epochs(1); }, kInvalid,
       "spec.training.epochs: steps is given as well; give one of the two"},
      {"negative steps", MlpSpec, [](auto& s) { s.mutable_training()->set_steps(-1); }, kInvalid,
       "spec.training.steps: -1 is not in [1, 4294967295]"},
      {"negative epochs", MlpSpec,
       [](auto& s) {
         s.mutable_training()->clear_steps();
         s.mutable_training()->set_epochs(-1);
       },
       kInvalid, "spec.training.epochs: -1 is not a finite number above 0"},
      {"nan epochs", MlpSpec,
       [](auto& s) {
         s.mutable_training()->clear_steps();
         s.mutable_training()->set_epochs(kNan);
       },
       kInvalid, "spec.training.epochs: nan is not a finite number above 0"},
      {"no batch", MlpSpec, [](auto& s) { s.mutable_training()->clear_batch_size(); }, kInvalid,
       "spec.training.batch_size: 0 is not in [1, 16777216]"},
      {"does not divide", MlpSpec,
       [](auto& s) {
         s.mutable_training()->set_batch_size(100);
         s.mutable_training()->set_micro_batch_size(32);
       },
       kInvalid,
       "spec.training.batch_size: 100 is not a multiple of micro_batch_size 32; try 96 or 128"},
      {"micro larger", MlpSpec, [](auto& s) { s.mutable_training()->set_micro_batch_size(32); },
       kInvalid, "spec.training.batch_size: 6 is not a multiple of micro_batch_size 32; try 32"},
      {"ranks", MlpSpec, [](auto& s) { s.mutable_parallel()->set_logical_ranks(4); }, kInvalid,
       "spec.training.batch_size: 6 is not a multiple of the 4 logical ranks; try 4 or 8"},
      {"ranks and micro", MlpSpec,
       [](auto& s) {
         s.mutable_parallel()->set_logical_ranks(3);
         s.mutable_training()->set_batch_size(30);
         s.mutable_training()->set_micro_batch_size(4);
       },
       kInvalid,
       "spec.training.batch_size: 30 is not a multiple of micro_batch_size 4 times the 3 logical "
       "ranks; "
       "try 24 or 36"},
      {"micro 0", MlpSpec, [](auto& s) { s.mutable_training()->set_micro_batch_size(0); }, kInvalid,
       "spec.training.micro_batch_size: 0 is not in [1, 16777216]"},
      {"log never", MlpSpec, [](auto& s) { s.mutable_training()->set_log_every(0); }, kInvalid,
       "spec.training.log_every: 0 is less than 1"},
  };
  return table;
}

const std::vector<BadSpec>& PolicyTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"smoothing", MlpSpec, [](auto& s) { s.mutable_training()->set_label_smoothing(1); },
       kInvalid, "spec.training.label_smoothing: 1 is not in [0, 1)"},
      {"nan smoothing", MlpSpec, [](auto& s) { s.mutable_training()->set_label_smoothing(kNan); },
       kInvalid, "spec.training.label_smoothing: nan is not in [0, 1)"},
      {"z-loss", MlpSpec, [](auto& s) { s.mutable_training()->set_z_loss(-1); }, kInvalid,
       "spec.training.z_loss: -1 is not in [0, 1]; PaLM took 1e-4"},
      {"smoothed clicks", DlrmSpec, [](auto& s) { s.mutable_training()->set_label_smoothing(0.1); },
       kInvalid,
       "spec.training.label_smoothing: has no meaning for dlrm, whose loss is binary; leave it "
       "out"},
      {"z-loss of clicks", DlrmSpec, [](auto& s) { s.mutable_training()->set_z_loss(1e-4); },
       kInvalid,
       "spec.training.z_loss: has no meaning for dlrm, whose loss is binary; leave it out"},
      {"unknown policy", MlpSpec,
       [](auto& s) {
         s.mutable_training()->set_on_non_finite(static_cast<v1::Training::OnNonFinite>(7));
       },
       kInvalid, "spec.training.on_non_finite: 7 is no policy; use HALT or ROLL_BACK"},
      {"rollbacks of none", MlpSpec, [](auto& s) { s.mutable_training()->set_max_rollbacks(3); },
       kInvalid, "spec.training.max_rollbacks: has no use with on_non_finite HALT; use ROLL_BACK"},
      {"no rollbacks", MlpSpec,
       [](auto& s) {
         s.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
         s.mutable_training()->set_max_rollbacks(0);
       },
       kInvalid, "spec.training.max_rollbacks: 0 is not in [1, 1000]"},
      {"stopping without evaluations", MlpSpec,
       [](auto& s) { s.mutable_evaluation()->mutable_early_stopping(); }, kInvalid,
       "spec.evaluation.early_stopping: goes by evaluations, of which there are none before the "
       "end; set spec.evaluation.every_steps"},
      {"unknown metric", MlpSpec, [](auto& s) { StoppingOf(s).set_metric("accuracies"); }, kInvalid,
       "spec.evaluation.early_stopping.metric: evaluation of this job reports no 'accuracies' (did "
       "you mean 'accuracy'?); it reports loss, accuracy"},
      {"metric of other data", GptSpec, [](auto& s) { BestOf(s).set_metric("auc"); }, kInvalid,
       "spec.checkpoint.best.metric: evaluation of this job reports no 'auc'; it reports loss, "
       "accuracy, perplexity, bits_per_byte"},
      {"unknown mode", MlpSpec,
       [](auto& s) { StoppingOf(s).set_mode(static_cast<v1::Evaluation::Mode>(5)); }, kInvalid,
       "spec.evaluation.early_stopping.mode: 5 is no mode; use MIN or MAX"},
      {"impatient", MlpSpec, [](auto& s) { StoppingOf(s).set_patience(0); }, kInvalid,
       "spec.evaluation.early_stopping.patience: 0 is less than 1"},
      {"negative delta", MlpSpec, [](auto& s) { StoppingOf(s).set_min_delta(-1); }, kInvalid,
       "spec.evaluation.early_stopping.min_delta: -1 is not a finite number of at least 0"},
      {"best of nothing", MlpSpec, [](auto& s) { s.mutable_checkpoint()->mutable_best(); },
       kInvalid,
       "spec.checkpoint.best: goes by evaluations, of which there are none before the end; set "
       "spec.evaluation.every_steps"},
      {"best none", MlpSpec, [](auto& s) { BestOf(s).set_keep(0); }, kInvalid,
       "spec.checkpoint.best.keep: 0 is not in [1, 100]"},
  };
  return table;
}

TEST(ResolveSpec, RefusesBadTraining) { ExpectRefused(TrainingTable()); }
TEST(ResolveSpec, RefusesBadPolicies) { ExpectRefused(PolicyTable()); }

TEST(ResolveSpec, AMetricSaysWhichOfItsValuesIsTheBetterOne) {
  v1::JobSpec spec = DlrmSpec();
  for (const auto& [metric, mode] :
       {std::pair{"", v1::Evaluation::MIN}, {"auc", v1::Evaluation::MAX}}) {
    StoppingOf(spec).set_metric(metric);
    BestOf(spec).set_metric(metric);
    const v1::JobSpec resolved = *ResolveSpec(spec);
    EXPECT_EQ(resolved.evaluation().early_stopping().mode(), mode);
    EXPECT_EQ(resolved.checkpoint().best().mode(), mode);
  }
  StoppingOf(spec).set_mode(v1::Evaluation::MIN);
  EXPECT_EQ(ResolveSpec(spec)->evaluation().early_stopping().mode(), v1::Evaluation::MIN);
}

TEST(Recompute, TakesOneBudgetWithinItsRange) {
  const auto refused = [](auto&& set) {
    v1::JobSpec spec = CharGptSpec();
    set(*spec.mutable_training()->mutable_recompute());
    return std::string(ResolveSpec(spec).status().message());
  };
  EXPECT_THAT(refused([](auto&) {}), HasSubstr("spec.training.recompute: says no budget"));
  EXPECT_THAT(refused([](auto& r) { r.set_slot_bytes(1), r.set_activation_bytes(1); }),
              HasSubstr("spec.training.recompute: says more than one budget"));
  for (const double share : {0.0, 1.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refused([&](auto& r) { r.set_activation_share(share); }),
                HasSubstr("spec.training.recompute.activation_share: "));
  }
  EXPECT_THAT(refused([](auto& r) { r.set_activation_bytes(0); }),
              HasSubstr("spec.training.recompute.activation_bytes: 0"));
  EXPECT_THAT(refused([](auto& r) { r.set_slot_bytes(-5); }),
              HasSubstr("spec.training.recompute.slot_bytes: -5"));
}

}  // namespace
}  // namespace trainyard::plan
