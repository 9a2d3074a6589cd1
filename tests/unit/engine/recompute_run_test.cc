// A run that recomputes its activations leaves the same bits as one that keeps them: weights,
// running statistics, averages, and every metric on the way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/data/open_dataset.h"
#include "executor/plan/assembly.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/engine/family.h"

namespace trainyard::engine {
namespace {

class RecomputeRun : public testing::TestWithParam<Family> {
 protected:
  v1::JobSpec Spec(int micro_batch) const {
    v1::JobSpec spec = SmallJob(GetParam(), folder_.path(), 3);
    spec.mutable_training()->set_micro_batch_size(micro_batch);
    spec.mutable_training()->set_ema_decay(0.9);
    return spec;
  }

  void RunOf(const v1::JobSpec& spec, RecordingObserver& seen) {
    const auto result =
        RunOnCpu(spec, folder_.path() + "/run" + std::to_string(++runs_), seen, std::nullopt, 1);
    EXPECT_TRUE(result.ok()) << result.status();
  }

  static void ExpectTheSameBits(const RecordingObserver& a, const RecordingObserver& b) {
    ASSERT_FALSE(a.checkpoints.empty());
    ASSERT_FALSE(b.checkpoints.empty());
    EXPECT_EQ(a.checkpoints.back().weights_sha256, b.checkpoints.back().weights_sha256);
    ASSERT_EQ(a.metrics.size(), b.metrics.size());
    for (size_t i = 0; i < a.metrics.size(); ++i) {
      for (const char* name : {"loss", "grad_norm"}) {
        if (!a.metrics[i].values.contains(name)) continue;
        EXPECT_EQ(a.metrics[i].values.at(name), b.metrics[i].values.at(name)) << name;
      }
    }
  }

  TempFolder folder_;
  int runs_ = 0;
};

TEST_P(RecomputeRun, LeavesTheSameBits) {
  for (const int micro_batch : {8, 4}) {
    v1::JobSpec spec = Spec(micro_batch);
    RecordingObserver kept;
    RunOf(spec, kept);
    const v1::JobSpec resolved = plan::ResolveSpec(spec).value();
    const auto dataset =
        data::OpenDataset(resolved.data(), plan::WindowingOf(resolved.model())).value();
    const plan::Plan all = plan::BuildPlan(resolved, dataset->facts()).value();
    const plan::Plan least = plan::Assemble(resolved, dataset->facts(), 1).value();
    EXPECT_GT(least.micro.size(), all.micro.size())
        << "nothing is recomputed: the test shows nothing";
    const int64_t most = all.summary.activation_bytes(), fewest = least.summary.activation_bytes();
    for (const int64_t bytes : {fewest, (fewest + most) / 2}) {
      spec.mutable_training()->mutable_recompute()->set_activation_bytes(bytes);
      RecordingObserver recomputed;
      RunOf(spec, recomputed);
      ExpectTheSameBits(recomputed, kept);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, RecomputeRun,
    testing::Values(
        Family{"gpt", "model { gpt { layers: 3 heads: 2 width: 16 context: 8 dropout: 0.1 } }"},
        Family{"llama", "model { llama { layers: 3 heads: 4 kv_heads: 2 width: 16 context: 8 } }"},
        Family{"bert", "model { bert { layers: 3 heads: 2 width: 8 context: 9 dropout: 0.1 } }",
               Family::kDocuments},
        Family{"vit", "model { vit { layers: 3 heads: 2 width: 8 patch: 4 dropout: 0.1 } }",
               Family::kImages},
        Family{"resnet18", "model { resnet { depth: 18 stem: CIFAR width: 4 } }", Family::kImages},
        Family{"resnet50", "model { resnet { depth: 50 stem: IMAGENET width: 4 } }",
               Family::kImages},
        Family{"mobilenet", "model { mobilenet { stem: CIFAR width: 0.05 dropout: 0.2 } }",
               Family::kImages},
        Family{"convnet",
               "model { convnet { stages { channels: 4 convolutions: 3 } stages { channels: 8 "
               "convolutions: 2 } "
               "hidden: 16 dropout: 0.2 activation: GELU } }",
               Family::kImages},
        Family{"mlp",
               "model { mlp { hidden: 32 hidden: 32 hidden: 32 hidden: 32 activation: GELU "
               "dropout: 0.1 } }",
               Family::kImages},
        Family{"layers", R"(model { layers {
            layers { name: "a" convolution { out: 6 } }
            layers { activation: GELU }
            layers { name: "n" batch_norm {} }
            layers { inputs: "n" inputs: "a" concat {} }
            layers { activation: RELU6 }
            layers { convolution { out: 8 } }
            layers { activation: GELU }
            layers { dropout: 0.2 }
            layers { mean_pool {} }
            layers { linear {} } } })",
               Family::kImages}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trainyard::engine
