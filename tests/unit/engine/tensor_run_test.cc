// Runs whose layers are cut into the shards of tensor parallelism, all of them on one rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/file.h"
#include "tests/unit/engine/family.h"

namespace trainyard::engine {
namespace {

class TensorRun : public testing::TestWithParam<Family> {
 protected:
  v1::JobSpec Spec(int64_t steps, int tensor) const {
    v1::JobSpec spec = SmallJob(GetParam(), folder_.path(), steps);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_parallel()->set_tensor(tensor);
    spec.mutable_training()->set_log_every(1);
    return spec;
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  RunResult MustRun(const v1::JobSpec& spec, const std::string& name, RecordingObserver& seen,
                    std::optional<RestorePoint> restore = std::nullopt, int threads = 1) {
    const auto result = RunOnCpu(spec, Root(name), seen, std::move(restore), threads);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(RunResult());
  }

  static std::string FileOf(const WrittenCheckpoint& checkpoint, const std::string& name) {
    return ReadFile(checkpoint.uri + "/" + name, int64_t{1} << 24).value_or("");
  }

  TempFolder folder_;
};

// The weights that training begins with are those of the whole, bit for bit, and so is the file.
TEST_P(TensorRun, BeginsWithTheDrawsOfTheWhole) {
  std::vector<std::string> files;
  for (const int tensor : {1, 2, 3}) {
    v1::JobSpec spec = Spec(1, tensor);
    spec.mutable_schedule()->set_learning_rate(1e-60);  // of a step that changes nothing
    spec.mutable_schedule()->set_warmup_steps(0);
    RecordingObserver seen;
    MustRun(spec, "begin" + std::to_string(tensor), seen);
    ASSERT_FALSE(seen.checkpoints.empty());
    files.push_back(FileOf(seen.checkpoints.back(), "model.safetensors"));
    EXPECT_FALSE(files.back().empty());
    EXPECT_TRUE(files.back() == files.front()) << tensor << " shards";
  }
}

TEST_P(TensorRun, FollowsTheCurveOfOneShard) {
  RecordingObserver whole;
  MustRun(Spec(50, 1), "whole", whole);
  for (const int tensor : {2, 3, 4}) {
    RecordingObserver cut;
    MustRun(Spec(50, tensor), "cut" + std::to_string(tensor), cut);
    const std::vector<double> expected = whole.TrainLosses(), found = cut.TrainLosses();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "step " << i << ", " << tensor;
    }
    EXPECT_LT(found.back(), 0.97 * found.front()) << "nothing is learned: the test shows nothing";
    ASSERT_EQ(cut.Evaluations().size(), whole.Evaluations().size());
    for (size_t i = 0; i < cut.Evaluations().size(); ++i) {
      const double loss = whole.Evaluations()[i].at("loss");
      EXPECT_NEAR(cut.Evaluations()[i].at("loss"), loss, 1e-4 * loss);
    }
  }
}

TEST_P(TensorRun, GoesOnFromACheckpointWithTheSameBits) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
    v1::JobSpec spec = Spec(6, 3);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_checkpoint()->set_every_steps(3);
    const std::string name = "whole" + std::to_string(compute);
    RecordingObserver whole;
    MustRun(spec, name, whole);
    ASSERT_EQ(whole.checkpoints.size(), 2u);
    for (const double loss : whole.TrainLosses()) EXPECT_TRUE(std::isfinite(loss));

    RecordingObserver stopped, resumed;
    stopped.stop_at = 3;
    EXPECT_TRUE(MustRun(spec, name + "stopped", stopped).suspended);
    ASSERT_FALSE(stopped.checkpoints.empty());
    const WrittenCheckpoint& middle = stopped.checkpoints.back();
    MustRun(spec, name + "stopped", resumed,
            RestorePoint{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256},
            /*threads=*/2);
    ASSERT_FALSE(resumed.checkpoints.empty());
    EXPECT_EQ(resumed.checkpoints.back().weights_sha256, whole.checkpoints.back().weights_sha256);
    for (const char* file :
         {"model.safetensors", "ema.safetensors", "trainer_state/optimizer.safetensors"}) {
      const std::string expected = FileOf(whole.checkpoints.back(), file);
      EXPECT_FALSE(expected.empty()) << file;
      EXPECT_TRUE(FileOf(resumed.checkpoints.back(), file) == expected) << file;
    }
  }
}

TEST_P(TensorRun, RecomputesWithTheSameBits) {
  v1::JobSpec spec = Spec(3, 2);
  RecordingObserver kept, recomputed;
  MustRun(spec, "kept", kept);
  spec.mutable_training()->mutable_recompute()->set_activation_share(0.7);
  MustRun(spec, "recomputed", recomputed);
  ASSERT_FALSE(recomputed.checkpoints.empty());
  EXPECT_EQ(recomputed.checkpoints.back().weights_sha256, kept.checkpoints.back().weights_sha256);
  EXPECT_EQ(recomputed.TrainLosses(), kept.TrainLosses());
}

INSTANTIATE_TEST_SUITE_P(
    Families, TensorRun,
    testing::Values(
        Family{"gpt", "model { gpt { layers: 2 heads: 3 width: 12 context: 8 dropout: 0.1 } }"},
        Family{
            "llama",
            "model { llama { layers: 2 heads: 4 kv_heads: 2 width: 16 context: 8 mlp_width: 21 } "
            "}"},
        Family{"bert", "model { bert { layers: 2 heads: 2 width: 12 context: 9 dropout: 0.1 } }",
               Family::kDocuments},
        Family{"vit", "model { vit { layers: 2 heads: 3 width: 12 patch: 4 dropout: 0.1 } }",
               Family::kImages}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trainyard::engine
