// Runs of a model with batch norms: their running statistics are part of what a run leaves and goes
// on from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class ResnetRunTest : public ::testing::Test {
 protected:
  ResnetRunTest() {
    WriteIdx(folder_.path() + "/images", {60, 9, 7}, 127);
    WriteIdx(folder_.path() + "/labels", {60}, 3);
  }

  v1::JobSpec Spec(v1::Resnet::Stem stem) const {
    v1::JobSpec spec;
    v1::Resnet& resnet = *spec.mutable_model()->mutable_resnet();
    resnet.set_depth(18);
    resnet.set_stem(stem);
    resnet.set_width(4);
    spec.mutable_data()->mutable_idx()->set_train_images(folder_.path() + "/images");
    spec.mutable_data()->mutable_idx()->set_train_labels(folder_.path() + "/labels");
    spec.mutable_training()->set_steps(6);
    spec.mutable_training()->set_batch_size(8);
    spec.mutable_training()->set_micro_batch_size(4);
    spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    spec.mutable_schedule()->set_learning_rate(0.05);
    return spec;
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  static std::vector<char> TensorOf(const Checkpoint& checkpoint, const std::string& name) {
    const weights::TensorEntry& entry = checkpoint.model.header().tensors.at(name);
    std::vector<char> bytes(entry.bytes());
    EXPECT_TRUE(checkpoint.model.Read(entry, 0, bytes.size(), bytes.data()).ok());
    return bytes;
  }

  TempFolder folder_;
  const std::unique_ptr<ObjectStore> store_ = MakeFileStore();
};

TEST_F(ResnetRunTest, ResumesWithTheSameBitsRunningStatisticsAndHeldOutMetricsIncluded) {
  const v1::JobSpec spec = Spec(v1::Resnet::CIFAR);
  RecordingObserver straight;
  const auto whole = RunOnCpu(spec, Root("straight"), straight);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const int64_t cut : {1, 4}) {
    const std::string root = Root("cut" + std::to_string(cut));
    RecordingObserver first, second;
    first.stop_at = cut;
    ASSERT_TRUE(RunOnCpu(spec, root, first).ok());
    ASSERT_THAT(first.checkpoints, SizeIs(1));
    ASSERT_TRUE(RunOnCpu(spec, root, second, RestorePoint{first.checkpoints[0].uri, ""}).ok());
    EXPECT_EQ(second.checkpoints.back().weights_sha256, straight.checkpoints.back().weights_sha256);
    EXPECT_EQ(second.checkpoints.back().manifest_sha256,
              straight.checkpoints.back().manifest_sha256);
    EXPECT_EQ(second.metrics.back().split, RunObserver::Split::kValidation);
    EXPECT_EQ(second.metrics.back().values, straight.metrics.back().values);
  }
}

TEST_F(ResnetRunTest, ACheckpointHoldsRunningStatisticsAndCountsItsBatches) {
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Spec(v1::Resnet::CIFAR), Root("r"), seen).ok());
  const auto checkpoint = Checkpoint::Open(*store_, seen.checkpoints.back().uri, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto& tensors = checkpoint->model.header().tensors;
  EXPECT_THAT(tensors, SizeIs(62 + 3 * 20));  // as torchvision's resnet18
  const std::string norm = "resnet.encoder.stages.1.layers.0.shortcut.normalization.";
  EXPECT_THAT(tensors.at(norm + "running_var").shape, ElementsAre(8));
  EXPECT_NE(TensorOf(*checkpoint, norm + "running_mean"), std::vector<char>(8 * sizeof(float)));
  EXPECT_EQ(tensors.at(norm + "num_batches_tracked").dtype, "I64");
  EXPECT_THAT(tensors.at(norm + "num_batches_tracked").shape, SizeIs(0));
  EXPECT_THAT(TensorOf(*checkpoint, norm + "num_batches_tracked"),
              ElementsAre(12, 0, 0, 0, 0, 0, 0, 0));  // 6 steps of 2 micro-batches
}

// A step of fp16 that is skipped, because its gradient overflows, counts, and that is all.
TEST_F(ResnetRunTest, ASkippedStepMovesNoRunningStatistics) {
  v1::JobSpec spec = Spec(v1::Resnet::CIFAR);
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p60);
  spec.mutable_training()->set_steps(2);
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), seen).ok());
  const auto checkpoint = Checkpoint::Open(*store_, seen.checkpoints.back().uri, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ(checkpoint->run.loss_scale->skipped, 2);
  for (const auto& [name, entry] : checkpoint->model.header().tensors) {
    const bool variance = name.ends_with(".running_var");
    if (variance || name.ends_with(".running_mean")) {
      const std::vector<char> bytes = TensorOf(*checkpoint, name);
      std::vector<float> values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      EXPECT_THAT(values, Each(variance ? 1.0f : 0.0f)) << name;
    } else if (name.ends_with(".num_batches_tracked")) {
      EXPECT_THAT(TensorOf(*checkpoint, name), Each(0)) << name;
    }
  }
}

TEST_F(ResnetRunTest, ConfigSpeaksToTransformersWhereItKnowsTheStem) {
  const plan::DataFacts facts = {
      .height = 33, .width = 33, .channels = 3, .classes = 7, .train_size = 60};
  const auto config = [&](v1::Resnet::Stem stem, int depth) {
    v1::JobSpec given = Spec(stem);
    given.mutable_model()->mutable_resnet()->set_depth(depth);
    const v1::JobSpec spec = plan::ResolveSpec(given).value();
    return nlohmann::json::parse(ConfigToJson({spec, facts}, plan::BuildPlan(spec, facts).value()));
  };
  const nlohmann::json basic = config(v1::Resnet::IMAGENET, 34);
  EXPECT_EQ(basic.at("model_type"), "resnet");
  EXPECT_EQ(basic.at("num_channels"), 3);
  EXPECT_EQ(basic.at("num_labels"), 7);
  EXPECT_EQ(basic.at("layer_type"), "basic");
  EXPECT_EQ(basic.at("depths"), nlohmann::json({3, 4, 6, 3}));
  EXPECT_EQ(basic.at("hidden_sizes"), nlohmann::json({4, 8, 16, 32}));
  const nlohmann::json deep = config(v1::Resnet::IMAGENET, 101);
  EXPECT_EQ(deep.at("layer_type"), "bottleneck");
  EXPECT_EQ(deep.at("depths"), nlohmann::json({3, 4, 23, 3}));
  EXPECT_EQ(deep.at("hidden_sizes"), nlohmann::json({16, 32, 64, 128}));
  EXPECT_EQ(config(v1::Resnet::CIFAR, 18).at("model_type"), "trainyard-resnet");
}

}  // namespace
}  // namespace trainyard::engine
