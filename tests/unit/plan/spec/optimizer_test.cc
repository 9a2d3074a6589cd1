// What spec.optimizer, spec.schedule and the moving average may say.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>

#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

// An mlp of 10 steps with `text`, in protobuf's text format, in place of its optimizer.
v1::JobSpec With(const std::string& text) {
  v1::JobSpec spec = MlpSpec();
  spec.clear_optimizer();
  v1::JobSpec more;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &more)) << text;
  spec.MergeFrom(more);
  if (!more.has_optimizer()) spec.mutable_optimizer()->mutable_adamw();
  return spec;
}

constexpr char kPositive[] = " is not a finite number above 0";
constexpr char kNotNegative[] = " is not a finite number of at least 0";

void ExpectRefused(const std::string& text, const std::string& message) {
  const absl::Status status = ResolveSpec(With(text)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_EQ(status.message(), message) << text;
}

TEST(ResolveOptimizer, RefusesWhatNoOptimizerTakes) {
  const std::string at = "spec.optimizer.";
  ExpectRefused("optimizer {}", "spec.optimizer: there is none; set sgd, adamw, lamb or muon");
  ExpectRefused("optimizer { sgd { momentum: 1 } }", at + "sgd.momentum: 1 is not in [0, 1)");
  ExpectRefused("optimizer { sgd { weight_decay: -1 } }",
                at + "sgd.weight_decay: -1" + kNotNegative);
  ExpectRefused("optimizer { sgd { nesterov: true } }",
                at + "sgd.nesterov: needs momentum; try 0.9");
  ExpectRefused("optimizer { sgd { momentum: 0.9 lazy_tables: true } }",
                at + "sgd.lazy_tables: leaves rows alone that a step does not look up, which "
                     "momentum 0.9 would move; use momentum 0, or leave it out");
  ExpectRefused("optimizer { adamw { beta2: 1 } }", at + "adamw.beta2: 1 is not in [0, 1)");
  ExpectRefused("optimizer { adamw { epsilon: 0 } }", at + "adamw.epsilon: 0" + kPositive);
  ExpectRefused("optimizer { adamw { epsilon: 1e-60 } }",
                at + "adamw.epsilon: 1e-60 is 0 in single precision; try 1e-08");
  ExpectRefused("optimizer { lamb { beta1: nan } }", at + "lamb.beta1: nan is not in [0, 1)");
  ExpectRefused("optimizer { lamb { epsilon: 1e-60 } }",
                at + "lamb.epsilon: 1e-60 is 0 in single precision; try 1e-06");
  ExpectRefused("optimizer { lamb { weight_decay: inf } }",
                at + "lamb.weight_decay: inf" + kNotNegative);
  ExpectRefused("optimizer { muon { momentum: 1 } }", at + "muon.momentum: 1 is not in [0, 1)");
  ExpectRefused("optimizer { muon { weight_decay: -1 } }",
                at + "muon.weight_decay: -1" + kNotNegative);
  ExpectRefused("optimizer { muon { iterations: 0 } }",
                at + "muon.iterations: 0 is not in [1, 20]");
  ExpectRefused("optimizer { muon { adamw_learning_rate: 0 } }",
                at + "muon.adamw_learning_rate: 0" + kPositive);
  ExpectRefused("optimizer { muon { adamw { beta1: 2 } } }",
                at + "muon.adamw.beta1: 2 is not in [0, 1)");
  ExpectRefused("optimizer { muon {} } schedule { learning_rate: 0 }",
                "spec.schedule.learning_rate: is 0; the rest follows that of muon's matrices in "
                "proportion: try 0.02");
  ExpectRefused("optimizer { adamw {} clip_norm: 0 }", at + "clip_norm: 0" + kPositive);
}

TEST(ResolveOptimizer, RefusesGroupsThatSayNothingOrTwoThings) {
  const auto refused = [](const std::string& group, const std::string& message) {
    ExpectRefused("optimizer { adamw {} groups { pattern: 'a' } groups { " + group + " } }",
                  "spec.optimizer.groups[1]." + message);
  };
  refused("frozen: true",
          "pattern: is missing; names look like 'layers.0.weight', and * is any run of characters");
  refused("pattern: 'a' frozen: true weight_decay: 0",
          "weight_decay: has no use in a group that is frozen");
  refused("pattern: 'a' frozen: true learning_rate_scale: 1",
          "learning_rate_scale: has no use in a group that is frozen");
  refused("pattern: 'a' learning_rate_scale: 0", "learning_rate_scale: is 0; use frozen: true");
  refused("pattern: 'a' learning_rate_scale: -1",
          std::string("learning_rate_scale: -1") + kPositive);
  refused("pattern: 'a' weight_decay: nan", std::string("weight_decay: nan") + kNotNegative);
  refused("pattern: '" + std::string(1000, 'a') + "'", "pattern: 1000 bytes are more than 512");
}

TEST(ResolveSchedule, RefusesWhatNoScheduleFollows) {
  const auto refused = [](const std::string& schedule, const std::string& message) {
    ExpectRefused("schedule { " + schedule + " }", "spec.schedule." + message);
  };
  refused("learning_rate: nan", std::string("learning_rate: nan") + kNotNegative);
  refused("learning_rate: inf", std::string("learning_rate: inf") + kNotNegative);
  refused("learning_rate: -1", std::string("learning_rate: -1") + kNotNegative);
  refused("warmup_steps: -1", "warmup_steps: -1 is less than 0");
  refused("shape: COSINE min_learning_rate: 1",
          "min_learning_rate: 1 is above learning_rate 0.001");
  refused("shape: LINEAR warmup_steps: 10",
          "warmup_steps: 10 leaves nothing of the 10 steps to decay over; make it smaller");
  refused("shape: STEP", "milestones: there is none; STEP needs at least one");
  refused("shape: STEP milestones: 0", "milestones[0]: 0 is less than 1");
  refused("shape: STEP milestones: [5, 5]", "milestones[1]: 5 does not come after 5");
  refused("shape: STEP milestones: 5 gamma: 0", "gamma: 0 is not in (0, 1]");
  refused("shape: STEP milestones: 5 gamma: nan", "gamma: nan is not in (0, 1]");
  refused("shape: POLYNOMIAL power: 0", std::string("power: 0") + kPositive);
  refused("shape: WARMUP_STABLE_DECAY",
          "decay_start: is missing; give the step from which the learning rate falls");
  refused("shape: WARMUP_STABLE_DECAY decay_start: -1", "decay_start: -1 is less than 0");
  refused("shape: WARMUP_STABLE_DECAY decay_start: 3 warmup_steps: 4",
          "decay_start: 3 lies within the 4 steps of the warm-up");
  refused("shape: WARMUP_STABLE_DECAY decay_start: 10",
          "decay_start: 10 leaves nothing of the 10 steps to decay over; make it smaller");
  refused("shape: WARMUP_STABLE_DECAY decay_start: 5 decay: STEP",
          "decay: STEP is not how it can fall; use LINEAR, COSINE or ONE_MINUS_SQRT");
}

TEST(ResolveSchedule, RefusesFieldsThatTheShapeDoesNotRead) {
  const auto refused = [](const std::string& schedule, const std::string& field,
                          const std::string& shape, const std::string& by) {
    ExpectRefused("schedule { " + schedule + " }", "spec.schedule." + field +
                                                       ": has no use with the shape " + shape +
                                                       "; use " + by + ", or leave it out");
  };
  refused("min_learning_rate: 1e-4", "min_learning_rate", "CONSTANT", "LINEAR or COSINE");
  refused("decay_steps: 5", "decay_steps", "CONSTANT", "LINEAR or COSINE");
  refused("shape: STEP milestones: 2 decay_steps: 5", "decay_steps", "STEP", "LINEAR or COSINE");
  refused("shape: COSINE milestones: 2", "milestones", "COSINE", "STEP");
  refused("shape: COSINE gamma: 0.5", "gamma", "COSINE", "STEP");
  refused("shape: LINEAR power: 2", "power", "LINEAR", "POLYNOMIAL");
  refused("shape: LINEAR decay_start: 2", "decay_start", "LINEAR", "WARMUP_STABLE_DECAY");
  refused("shape: LINEAR decay: COSINE", "decay", "LINEAR", "WARMUP_STABLE_DECAY");
}

TEST(ResolveTraining, RefusesAveragesThatDoNotMoveOrDoNotRemember) {
  for (const char* decay : {"0", "1", "-0.5", "nan"}) {
    ExpectRefused(std::string("training { ema_decay: ") + decay + " }",
                  std::string("spec.training.ema_decay: ") + decay + " is not in (0, 1)");
  }
  ExpectRefused("training { ema_warmup: true }",
                "spec.training.ema_warmup: has no use without ema_decay");
}

TEST(ResolveOptimizer, FillsTheDefaultsOfTheProtoOnce) {
  for (const char* text :
       {"optimizer { sgd { momentum: 0.9 nesterov: true } }", "optimizer { lamb {} }",
        "optimizer { muon {} }", "optimizer { muon { scale: MATCH_RMS_ADAMW } }",
        "schedule { shape: STEP milestones: 5 }", "schedule { shape: POLYNOMIAL }",
        "schedule { shape: WARMUP_STABLE_DECAY decay_start: 5 }",
        "schedule { shape: ONE_MINUS_SQRT }", "training { ema_decay: 0.9 ema_warmup: true }"}) {
    const auto once = ResolveSpec(With(text));
    ASSERT_TRUE(once.ok()) << text << once.status();
    const auto twice = ResolveSpec(*once);
    ASSERT_TRUE(twice.ok()) << text << twice.status();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*once, *twice)) << text;
  }
  const v1::Lamb lamb = ResolveSpec(With("optimizer { lamb {} }"))->optimizer().lamb();
  EXPECT_EQ(lamb.beta1(), 0.9);
  EXPECT_EQ(lamb.beta2(), 0.999);
  EXPECT_EQ(lamb.epsilon(), 1e-6);
  EXPECT_EQ(lamb.weight_decay(), 0.01);
  const v1::Muon muon = ResolveSpec(With("optimizer { muon {} }"))->optimizer().muon();
  EXPECT_EQ(muon.momentum(), 0.95);
  EXPECT_TRUE(muon.nesterov());
  EXPECT_EQ(muon.iterations(), 5);
  EXPECT_EQ(muon.scale(), v1::Muon::ORIGINAL);
  EXPECT_EQ(muon.weight_decay(), 0);
  EXPECT_EQ(muon.adamw_learning_rate(), 3e-4);
  EXPECT_EQ(muon.adamw().beta2(), 0.999);
  const auto schedule = [](const char* text) { return ResolveSpec(With(text))->schedule(); };
  EXPECT_EQ(schedule("schedule { shape: STEP milestones: 5 }").gamma(), 0.1);
  EXPECT_EQ(schedule("schedule { shape: POLYNOMIAL }").power(), 1);
  EXPECT_EQ(schedule("schedule { shape: WARMUP_STABLE_DECAY decay_start: 5 }").decay(),
            v1::Schedule::LINEAR);
}

}  // namespace
}  // namespace trainyard::plan
