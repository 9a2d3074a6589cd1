// Runs in bf16 and fp16: they learn, resume with the same bits, and fp16 scales its loss.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/manifest.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "executor/engine/loss_scale.h"
#include "executor/engine/sampler.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/digest.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kNarrow = {v1::Precision::BF16, v1::Precision::FP16};

TEST(LossScale, IsHalvedAtOnceAndDoubledAfterAnIntervalOfGoodSteps) {
  LossScale scale{.scale = 1024};
  for (int i = 0; i < 2; ++i) scale = AfterStep(scale, true, 3);
  EXPECT_EQ(scale, (LossScale{.scale = 1024, .good_steps = 2}));
  scale = AfterStep(scale, false, 3);
  EXPECT_EQ(scale, (LossScale{.scale = 512, .good_steps = 0, .skipped = 1}));
  for (int i = 0; i < 3; ++i) scale = AfterStep(scale, true, 3);
  EXPECT_EQ(scale, (LossScale{.scale = 1024, .good_steps = 0, .skipped = 1}));
}

TEST(LossScale, StaysFinite) {
  const LossScale scale = AfterStep({.scale = 0x1p127f}, true, 1);
  EXPECT_EQ(scale, (LossScale{.scale = 0x1p127f, .good_steps = 0}));
}

class PrecisionRunTest : public ::testing::Test {
 protected:
  std::string Root(const std::string& name) { return folder_.path() + "/" + name; }

  v1::JobSpec Spec(v1::Precision::Compute compute, int64_t steps) const {
    v1::JobSpec spec = SmallGpt(text_, steps);
    spec.mutable_precision()->set_compute(compute);
    return spec;
  }

  // A step is one micro-batch: in bf16 the gradients of matrices are, too.
  v1::JobSpec OneMicroBatch(v1::Precision::Compute compute, int64_t steps) const {
    v1::JobSpec spec = Spec(compute, steps);
    spec.mutable_training()->set_micro_batch_size(spec.training().batch_size());
    return spec;
  }

  void WritePeriodicText() const {
    std::ofstream out(text_, std::ios::trunc);
    for (int i = 0; i < 500; ++i) out << "abcdefgh";
  }

  static std::vector<double> ValuesOf(const RecordingObserver& seen, const std::string& name) {
    std::vector<double> values;
    for (const auto& m : seen.metrics) {
      if (m.split == RunObserver::Split::kTrain) values.push_back(m.values.at(name));
    }
    return values;
  }

  TempFolder folder_;
  const std::string text_ = WriteText(folder_.path());
};

TEST_F(PrecisionRunTest, LearnsAsInFp32) {
  RecordingObserver wide;
  ASSERT_TRUE(RunOnCpu(Spec(v1::Precision::FP32, 60), Root("fp32"), wide).ok());
  const double expected = wide.metrics.back().values.at("loss");  // of the held-out split
  EXPECT_LT(expected, 2.3);
  for (const auto compute : kNarrow) {
    RecordingObserver seen;
    const auto result =
        RunOnCpu(Spec(compute, 60), Root(v1::Precision::Compute_Name(compute)), seen);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(seen.metrics.back().values.at("loss"), expected, 0.02 * expected);
    EXPECT_NE(seen.TrainLosses(), wide.TrainLosses());
  }
}

TEST_F(PrecisionRunTest, LearnsAsInFp32ByGradientsInBf16) {
  RecordingObserver wide, narrow, cut;
  ASSERT_TRUE(RunOnCpu(OneMicroBatch(v1::Precision::FP32, 60), Root("fp32"), wide).ok());
  ASSERT_TRUE(RunOnCpu(OneMicroBatch(v1::Precision::BF16, 60), Root("bf16"), narrow).ok());
  ASSERT_TRUE(RunOnCpu(Spec(v1::Precision::BF16, 60), Root("cut"), cut).ok());
  const std::vector<double> expected = wide.TrainLosses();
  for (const RecordingObserver* seen : {&narrow, &cut}) {
    const std::vector<double> found = seen->TrainLosses();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 0.03 * expected[i]);
  }
  EXPECT_NEAR(narrow.metrics.back().values.at("loss"), wide.metrics.back().values.at("loss"),
              0.02 * wide.metrics.back().values.at("loss"));
}

TEST_F(PrecisionRunTest, ResumesWithTheSameBitsFromFp32Masters) {
  std::vector<v1::JobSpec> specs = {OneMicroBatch(v1::Precision::BF16, 12)};
  for (const auto compute : kNarrow) specs.push_back(Spec(compute, 12));
  for (v1::JobSpec& spec : specs) {
    const auto compute = spec.precision().compute();
    if (compute == v1::Precision::FP16) {  // of the first steps some are skipped, then it grows
      spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p30);
      spec.mutable_precision()->mutable_loss_scale()->set_growth_interval(3);
    }
    const std::string name = v1::Precision::Compute_Name(compute) +
                             std::to_string(spec.training().micro_batch_size()) + "-";
    RecordingObserver straight;
    ASSERT_TRUE(RunOnCpu(spec, Root(name), straight).ok());
    for (const int64_t cut : {1, 7, 11}) {
      const std::string root = Root(name + std::to_string(cut));
      RecordingObserver first, second;
      first.stop_at = cut;
      ASSERT_TRUE(RunOnCpu(spec, root, first).ok());
      ASSERT_THAT(first.checkpoints, SizeIs(1));
      const auto result =
          RunOnCpu(spec, root, second,
                   RestorePoint{first.checkpoints[0].uri, first.checkpoints[0].manifest_sha256});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(second.checkpoints.back().manifest_sha256,
                straight.checkpoints.back().manifest_sha256);
      std::vector<double> losses = first.TrainLosses();
      for (double loss : second.TrainLosses()) losses.push_back(loss);
      EXPECT_EQ(losses, straight.TrainLosses());
    }
    const auto checkpoint = Checkpoint::Open(*MakeFileStore(), straight.checkpoints.back().uri, "");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const auto& [tensor, entry] : checkpoint->model.header().tensors) {
      EXPECT_EQ(entry.dtype, "F32") << tensor;
    }
  }
}

TEST_F(PrecisionRunTest, TheNumberOfThreadsDoesNotChangeTheBits) {
  for (const auto compute : kNarrow) {
    RecordingObserver one, two;
    ASSERT_TRUE(RunOnCpu(Spec(compute, 5), Root("a"), one, std::nullopt, 1).ok());
    ASSERT_TRUE(RunOnCpu(Spec(compute, 5), Root("b"), two, std::nullopt, 2).ok());
    EXPECT_EQ(one.TrainLosses(), two.TrainLosses());
    for (const char* root : {"a", "b"}) std::filesystem::remove_all(Root(root));
  }
  RecordingObserver one, two;
  const v1::JobSpec spec = OneMicroBatch(v1::Precision::BF16, 5);
  ASSERT_TRUE(RunOnCpu(spec, Root("a"), one, std::nullopt, 1).ok());
  ASSERT_TRUE(RunOnCpu(spec, Root("b"), two, std::nullopt, 2).ok());
  EXPECT_EQ(one.TrainLosses(), two.TrainLosses());
}

TEST_F(PrecisionRunTest, ASkippedStepHalvesTheScaleAndChangesNothingElse) {
  v1::JobSpec spec = Spec(v1::Precision::FP16, 4);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p60);
  spec.mutable_checkpoint()->set_every_steps(1);
  spec.mutable_checkpoint()->set_keep(4);
  RecordingObserver seen;
  const auto result = RunOnCpu(spec, Root("r"), seen);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ValuesOf(seen, "loss_scale"), (std::vector<double>{0x1p59, 0x1p58, 0x1p57, 0x1p56}));
  EXPECT_EQ(ValuesOf(seen, "skipped_steps"), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_THAT(ValuesOf(seen, "grad_norm"),
              Each(::testing::Not(::testing::Truly([](double v) { return std::isfinite(v); }))));
  std::set<std::string> weights;
  for (const WrittenCheckpoint& c : seen.checkpoints) weights.insert(c.weights_sha256);
  EXPECT_THAT(weights, SizeIs(1));
  const auto checkpoint = Checkpoint::Open(*MakeFileStore(), seen.checkpoints.back().uri, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->run.loss_scale, (LossScale{.scale = 0x1p56f, .skipped = 4}));
  const auto moment = checkpoint->optimizer.Find("exp_avg.transformer.ln_f.weight", {16});
  ASSERT_TRUE(moment.ok());
  std::vector<float> values(16, 1);
  ASSERT_TRUE(checkpoint->optimizer.Read(*moment, 0, 64, values.data()).ok());
  EXPECT_THAT(values, Each(0));
}

// What a run does after skipped steps is what one does that begins with the scale that they led to,
// but for the learning rate, the data and the dropout, which go by steps: here all are the same at
// each step.
TEST_F(PrecisionRunTest, SkippedStepsDoNotCountForTheOptimizer) {
  v1::JobSpec spec = Spec(v1::Precision::FP16, 40);
  spec.mutable_schedule()->Clear();
  spec.mutable_schedule()->set_learning_rate(1e-2);
  spec.mutable_model()->mutable_gpt()->set_dropout(0);
  std::ofstream(text_, std::ios::trunc) << std::string(4000, 'a') << "b";  // b is held out
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p40);
  RecordingObserver probe;
  ASSERT_TRUE(RunOnCpu(spec, Root("probe"), probe).ok());
  const std::vector<double> skipped = ValuesOf(probe, "skipped_steps");
  size_t first = 0;  // the first step that is not skipped
  while (first < skipped.size() && skipped[first] > static_cast<double>(first)) ++first;
  ASSERT_GT(first, 10u);
  ASSERT_LT(first, 38u);

  spec.mutable_training()->set_steps(static_cast<int64_t>(first) + 3);
  RecordingObserver late;
  ASSERT_TRUE(RunOnCpu(spec, Root("late"), late).ok());
  spec.mutable_training()->set_steps(3);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p40 / std::exp2(first));
  RecordingObserver at_once;
  ASSERT_TRUE(RunOnCpu(spec, Root("at once"), at_once).ok());
  EXPECT_EQ(ValuesOf(at_once, "skipped_steps").back(), 0);
  EXPECT_EQ(late.checkpoints.back().weights_sha256, at_once.checkpoints.back().weights_sha256);
}

TEST_F(PrecisionRunTest, AForwardPassThatOverflowsFailsInsteadOfSkippingForEver) {
  v1::JobSpec spec = Spec(v1::Precision::FP16, 200);
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_schedule()->Clear();
  spec.mutable_schedule()->set_learning_rate(1e6);
  RecordingObserver seen;
  const auto result = RunOnCpu(spec, Root("r"), seen);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(FaultOf(result.status()), Fault::kNumeric) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("precision.compute BF16"));
}

TEST_F(PrecisionRunTest, CopiesOfWeightsCostHalfOfThemAndActivationsBecomeSmaller) {
  const plan::DataFacts facts = {
      .kind = plan::DataFacts::Kind::kTokens, .vocab = 50257, .train_size = 1000000};
  v1::JobSpec spec = Spec(v1::Precision::FP32, 5);
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(12);
  gpt.set_heads(12);
  gpt.set_width(768);
  gpt.set_context(64);
  const auto summary = [&](v1::Precision::Compute compute) {
    spec.mutable_precision()->Clear();
    spec.mutable_precision()->set_compute(compute);
    return plan::BuildPlan(plan::ResolveSpec(spec).value(), facts).value().summary;
  };
  const v1::PlanSummary wide = summary(v1::Precision::FP32), narrow = summary(v1::Precision::BF16);
  EXPECT_EQ(wide.weight_copy_bytes(), 0);
  EXPECT_NEAR(static_cast<double>(narrow.weight_copy_bytes()),
              0.5 * static_cast<double>(narrow.parameter_bytes()),
              0.005 * static_cast<double>(narrow.parameter_bytes()));
  EXPECT_LT(static_cast<double>(narrow.activation_bytes()),
            0.62 * static_cast<double>(wide.activation_bytes()));
}

TEST_F(PrecisionRunTest, SamplesFromACheckpointOfBf16) {
  WritePeriodicText();
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Spec(v1::Precision::BF16, 100), Root("r"), seen).ok());
  const auto store = MakeFileStore();
  const auto checkpoint = Checkpoint::Open(*store, seen.checkpoints.back().uri, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto device = kernels::OpenCpu(1).value();
  const auto sampler = Sampler::Load(*device, *checkpoint);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<int32_t> ids;
  ASSERT_TRUE((*sampler)
                  ->Run({0, 1, 2}, 0, {.tokens = 5, .temperature = 0},
                        [&](int32_t id) { ids.push_back(id); })
                  .ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 4, 5, 6, 7}));
}

class LyingState : public ::testing::TestWithParam<const char*> {};

TEST_P(LyingState, IsRefusedByName) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  RecordingObserver seen;
  const auto run = RunOnCpu(spec, folder.path() + "/r", seen);
  ASSERT_TRUE(run.ok()) << run.status();
  const std::string uri = seen.checkpoints.back().uri;
  const auto read = [&](const char* name) {
    std::ifstream in(uri + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  nlohmann::json state = nlohmann::json::parse(read(kStateFile));
  state["loss_scale"].merge_patch(nlohmann::json::parse(GetParam()));
  // A liar brings digests that fit.
  const std::string lie = state.dump();
  Manifest manifest = ManifestFromJson(read(kManifestFile)).value();
  for (ManifestFile& file : manifest.files) {
    if (file.name != kStateFile) continue;
    file.bytes = static_cast<int64_t>(lie.size());
    file.sha256 = Sha256Hex(lie);
  }
  std::ofstream(uri + "/" + kStateFile) << lie;
  std::ofstream(uri + "/" + kManifestFile) << ManifestToJson(manifest);
  const auto opened = Checkpoint::Open(*MakeFileStore(), uri, "");
  EXPECT_TRUE(absl::IsDataLoss(opened.status())) << opened.status();
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("state.json"));
}

INSTANTIATE_TEST_SUITE_P(Scales, LyingState,
                         ::testing::Values(R"({"scale": 0})", R"({"scale": -1})",
                                           R"({"scale": 1e300})", R"({"scale": "big"})",
                                           R"({"scale": null})", R"({"good_steps": -1})",
                                           R"({"good_steps": 4})", R"({"skipped_steps": -1})",
                                           R"({"skipped_steps": 9223372036854775807})"));

}  // namespace
}  // namespace trainyard::engine
