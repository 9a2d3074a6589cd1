// Runs whose layers are cut into the stages of a pipeline.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/engine/fault.h"
#include "storage/base/file.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/on_ranks.h"

namespace trainyard::engine {
namespace {

class PipelineRun : public testing::TestWithParam<Family> {
 protected:
  // Four layers; eight micro-batches a step, of four logical ranks.
  v1::JobSpec Spec(int64_t steps, int tensor = 1) const {
    v1::JobSpec spec = SmallJob(GetParam(), folder_.path(), steps);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_parallel()->set_pipeline(4);
    spec.mutable_parallel()->set_tensor(tensor);
    spec.mutable_parallel()->set_logical_ranks(4);
    spec.mutable_training()->set_micro_batch_size(spec.training().batch_size() / 8);
    spec.mutable_training()->set_log_every(1);
    return spec;
  }

  static void SetLayers(int layers, v1::Model& model) {
    if (model.has_gpt()) model.mutable_gpt()->set_layers(layers);
    if (model.has_llama()) model.mutable_llama()->set_layers(layers);
    if (model.has_bert()) model.mutable_bert()->set_layers(layers);
    if (model.has_vit()) model.mutable_vit()->set_layers(layers);
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  static void ExpectSame(const WrittenCheckpoint& found, const WrittenCheckpoint& expected,
                         const std::string& of) {
    EXPECT_EQ(found.weights_sha256, expected.weights_sha256) << of;
    for (const char* file :
         {"model.safetensors", "ema.safetensors", "trainer_state/optimizer.safetensors"}) {
      const auto of_file = [&](const WrittenCheckpoint& checkpoint) {
        return ReadFile(checkpoint.uri + "/" + file, int64_t{1} << 24).value_or("");
      };
      EXPECT_FALSE(of_file(expected).empty()) << file;
      EXPECT_TRUE(of_file(found) == of_file(expected)) << file << of;
    }
  }

  // Losses, evaluations and every checkpoint.
  static void ExpectSameRun(const OnRanks& gang, const OnRanks& whole, const std::string& of) {
    gang.ExpectOk();
    EXPECT_EQ(gang.seen.TrainLosses(), whole.seen.TrainLosses()) << of;
    EXPECT_EQ(gang.seen.Evaluations(), whole.seen.Evaluations()) << of;
    ASSERT_EQ(gang.seen.checkpoints.size(), whole.seen.checkpoints.size()) << of;
    for (size_t i = 0; i < whole.seen.checkpoints.size(); ++i) {
      ExpectSame(gang.seen.checkpoints[i], whole.seen.checkpoints[i], of);
    }
  }

  // What a gang wrote that went on after the first of two checkpoints of `whole`.
  static void ExpectSameEnd(const OnRanks& resumed, const OnRanks& whole, const std::string& of) {
    resumed.ExpectOk();
    ASSERT_FALSE(resumed.seen.checkpoints.empty()) << of;
    ExpectSame(resumed.seen.checkpoints.back(), whole.seen.checkpoints[1], of);
    EXPECT_EQ(resumed.seen.TrainLosses(), LastOf(whole.seen.TrainLosses(), resumed)) << of;
  }

  void ExpectSameWeights(const v1::JobSpec& spec, const Layout& layout) const {
    const OnRanks whole(spec, Root("whole"), Layout{}), gang(spec, Root("gang"), layout);
    gang.ExpectOk();
    ASSERT_FALSE(whole.seen.checkpoints.empty() || gang.seen.checkpoints.empty());
    EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256,
              whole.seen.checkpoints.back().weights_sha256);
  }

  TempFolder folder_;
};

TEST_P(PipelineRun, HasTheSameBitsInAnyNumberOfStages) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
    v1::JobSpec spec = Spec(4);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_checkpoint()->set_every_steps(2);
    spec.mutable_evaluation()->set_every_steps(2);
    const std::string name = "on" + std::to_string(compute);
    const OnRanks whole(spec, Root(name), Layout{});
    whole.ExpectOk();
    ASSERT_EQ(whole.seen.checkpoints.size(), 2u);
    for (const double loss : whole.seen.TrainLosses()) EXPECT_TRUE(std::isfinite(loss));
    for (const Layout& layout : {Layout{.ranks = 2, .stages = 2}, Layout{.ranks = 3, .stages = 3},
                                 Layout{.ranks = 4, .stages = 2}, Layout{.ranks = 2},
                                 Layout{.ranks = 2, .stages = 2, .chunks = 2},
                                 Layout{.ranks = 6, .stages = 2, .chunks = 2}}) {
      const std::string of = layout.Words();
      const OnRanks gang(spec, Root(name + of), layout);
      ExpectSameRun(gang, whole, of);
    }
    // From the middle, on another layout, and alone from what a gang wrote.
    const WrittenCheckpoint& middle = whole.seen.checkpoints[0];
    const OnRanks resumed(
        spec, Root(name), {.ranks = 3, .stages = 3},
        RestorePoint{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256});
    ExpectSameEnd(resumed, whole, "resumed");
    const OnRanks begun(spec, Root(name + "begun"), {.ranks = 4, .stages = 2, .chunks = 2});
    begun.ExpectOk();
    ASSERT_EQ(begun.seen.checkpoints.size(), 2u);
    const WrittenCheckpoint& of_gang = begun.seen.checkpoints[0];
    const OnRanks alone(
        spec, Root(name + "begun"), Layout{},
        RestorePoint{.uri = of_gang.uri, .manifest_sha256 = of_gang.manifest_sha256});
    ExpectSameEnd(alone, whole, "resumed alone");
  }
}

// Pieces that are neither first nor last, numbers of micro-batches that are no multiple of that of
// stages, and stages whose neighbours are different ranks.
TEST_P(PipelineRun, HasTheSameBitsInManyChunks) {
  v1::JobSpec spec = Spec(3, /*tensor=*/2);
  SetLayers(8, *spec.mutable_model());
  spec.mutable_evaluation()->set_every_steps(2);
  spec.mutable_training()->set_ema_decay(0.9);
  const OnRanks whole(spec, Root("whole"), Layout{});
  whole.ExpectOk();
  ASSERT_FALSE(whole.seen.checkpoints.empty());
  for (const Layout& layout :
       {Layout{.ranks = 3, .stages = 3, .chunks = 2}, Layout{.ranks = 2, .stages = 2, .chunks = 4},
        Layout{.ranks = 4, .stages = 4, .chunks = 2}, Layout{.ranks = 6, .stages = 3, .chunks = 2},
        Layout{.ranks = 6, .sharing = 2, .stages = 3, .sequence = true, .chunks = 2}}) {
    const std::string of = layout.Words();
    ExpectSameRun(OnRanks(spec, Root(of), layout), whole, of);
  }
}

// Groups of stages of shards: all three axes at once.
TEST_P(PipelineRun, HasTheSameBitsWithShards) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = Spec(3, /*tensor=*/2);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_evaluation()->set_every_steps(2);
    const std::string name = "shards" + std::to_string(compute);
    const OnRanks whole(spec, Root(name), Layout{});
    whole.ExpectOk();
    ASSERT_FALSE(whole.seen.checkpoints.empty());
    for (const Layout& layout :
         {Layout{.ranks = 4, .sharing = 2, .stages = 2},
          Layout{.ranks = 6, .sharing = 2, .stages = 3},
          Layout{.ranks = 8, .sharing = 2, .stages = 2}, Layout{.ranks = 2, .stages = 2},
          Layout{.ranks = 4, .sharing = 2, .stages = 2, .chunks = 2},
          Layout{.ranks = 4, .stages = 2, .chunks = 2},
          Layout{.ranks = 4, .sharing = 2, .stages = 2, .sequence = true},
          Layout{.ranks = 4, .sharing = 2, .stages = 2, .sequence = true, .chunks = 2},
          Layout{.ranks = 6, .sharing = 2, .stages = 3, .sequence = true}}) {
      const std::string of = layout.Words();
      const OnRanks gang(spec, Root(name + of), layout);
      ExpectSameRun(gang, whole, of);
    }
  }
}

// Each rank chooses by itself what to compute a second time, with others' passes in between.
TEST_P(PipelineRun, RecomputesWithTheSameBits) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = Spec(3, /*tensor=*/2);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_evaluation()->set_every_steps(2);
    spec.mutable_evaluation()->set_batch_size(1);  // or that is what takes most
    spec.mutable_training()->set_ema_decay(0.9);
    const std::string name = "recomputing" + std::to_string(compute);
    const OnRanks whole(spec, Root(name), Layout{});
    whole.ExpectOk();
    for (const Layout& layout :
         {Layout{.ranks = 2, .stages = 2}, Layout{.ranks = 3, .stages = 3},
          Layout{.ranks = 6, .sharing = 2, .stages = 3}, Layout{.ranks = 4, .stages = 2},
          Layout{.ranks = 4, .sharing = 2, .stages = 2, .sequence = true},
          Layout{.ranks = 2, .stages = 2, .chunks = 2},
          Layout{.ranks = 4, .sharing = 2, .stages = 2, .sequence = true, .chunks = 2}}) {
      // Chunks keep most of what they keep between their passes.
      const double share = layout.chunks > 1 ? 0.9 : 0.8;
      spec.mutable_training()->mutable_recompute()->set_activation_share(share);
      const std::string of = layout.Words();
      const OnRanks gang(spec, Root(name + of), layout);
      ExpectSameRun(gang, whole, of);
    }
  }
}

// Ranks that have the same stage, and the same shards of it, step a share of its elements each.
TEST_P(PipelineRun, HasTheSameBitsWithTheOptimizerInShares) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = Spec(4, /*tensor=*/2);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_checkpoint()->set_every_steps(2);
    spec.mutable_evaluation()->set_every_steps(2);
    const std::string name = "shares" + std::to_string(compute);
    const OnRanks whole(spec, Root(name), Layout{});
    whole.ExpectOk();
    ASSERT_EQ(whole.seen.checkpoints.size(), 2u);
    v1::JobSpec sharded = spec;
    sharded.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
    for (const Layout& layout :
         {Layout{.ranks = 4, .stages = 2}, Layout{.ranks = 8, .sharing = 2, .stages = 2},
          Layout{.ranks = 4, .stages = 2, .chunks = 2}, Layout{.ranks = 3}}) {
      const std::string of = layout.Words();
      const OnRanks gang(sharded, Root(name + of), layout);
      ExpectSameRun(gang, whole, of);
      const WrittenCheckpoint& middle = whole.seen.checkpoints[0];
      const OnRanks resumed(
          sharded, Root(name), layout,
          RestorePoint{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256});
      ExpectSameEnd(resumed, whole, of + ", resumed");
    }
  }
}

// Trust ratios are those of whole tensors, also of a table that two stages have.
TEST_P(PipelineRun, HasTheSameBitsWithLamb) {
  v1::JobSpec spec = Spec(3);
  spec.mutable_optimizer()->mutable_lamb();
  ExpectSameWeights(spec, {.ranks = 3, .stages = 3});
  ExpectSameWeights(spec, {.ranks = 2, .stages = 2, .chunks = 2});
  spec.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
  ExpectSameWeights(spec, {.ranks = 4, .stages = 2});
}

// Where a layer is frozen, so are all matrices of the first of four stages: rank 0 has no
// momentum, and writes that of the others.
TEST_P(PipelineRun, HasTheSameBitsWithMuon) {
  for (const bool frozen : {false, true}) {
    v1::JobSpec spec = Spec(4);
    spec.mutable_optimizer()->mutable_muon();
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_checkpoint()->set_every_steps(2);
    if (frozen) {
      v1::ParameterGroup& group = *spec.mutable_optimizer()->add_groups();
      group.set_pattern("*.0.*");
      group.set_frozen(true);
    }
    const std::string name = frozen ? "frozen" : "all";
    const OnRanks whole(spec, Root(name), Layout{});
    whole.ExpectOk();
    ASSERT_EQ(whole.seen.checkpoints.size(), 2u);
    for (const Layout& layout : {Layout{.ranks = 4, .stages = 4}, Layout{.ranks = 4, .stages = 2},
                                 Layout{.ranks = 2, .stages = 2, .chunks = 2}}) {
      const std::string of = layout.Words();
      ExpectSameRun(OnRanks(spec, Root(name + of), layout), whole, of);
      const WrittenCheckpoint& middle = whole.seen.checkpoints[0];
      const OnRanks resumed(
          spec, Root(name), layout,
          RestorePoint{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256});
      ExpectSameEnd(resumed, whole, of);
    }
  }
}

// The first layer is drawn anew, and all else is that of a folder, the tied head too.
TEST_P(PipelineRun, HasTheSameBitsWithTheWeightsOfAnotherModel) {
  const OnRanks source(Spec(3), Root("source"), Layout{});
  source.ExpectOk();
  ASSERT_FALSE(source.seen.checkpoints.empty());
  v1::JobSpec spec = Spec(3, /*tensor=*/2);
  spec.mutable_fine_tune()->set_from(source.seen.checkpoints.back().uri);
  spec.mutable_fine_tune()->add_reinitialize("*.0.*");
  ExpectSameWeights(spec, {.ranks = 3, .stages = 3});
  ExpectSameWeights(spec, {.ranks = 8, .sharing = 2, .stages = 2});
}

// What is frozen stays, and the gradient passes it.
TEST_P(PipelineRun, HasTheSameBitsWithFrozenParameters) {
  v1::JobSpec spec = Spec(3);
  v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
  frozen.set_pattern(GetParam().name == std::string("llama") ? "*norm.weight" : "*bias");
  frozen.set_frozen(true);
  ExpectSameWeights(spec, {.ranks = 3, .stages = 3});
}

TEST_P(PipelineRun, FollowsTheCurveOfAJobWithoutStages) {
  v1::JobSpec spec = Spec(20);
  const OnRanks staged(spec, Root("staged"), {.ranks = 3, .stages = 3});
  staged.ExpectOk();
  spec.mutable_parallel()->set_pipeline(1);
  const OnRanks usual(spec, Root("usual"), Layout{});
  usual.ExpectOk();
  const std::vector<double> found = staged.seen.TrainLosses(), expected = usual.seen.TrainLosses();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << "step " << i;
  }
}

// A step that overflows fp16 is skipped by all, whichever of them finds it.
TEST_P(PipelineRun, SkipsTheSameSteps) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p30);
  const OnRanks whole(spec, Root("whole"), Layout{});
  whole.ExpectOk();
  ASSERT_FALSE(whole.seen.checkpoints.empty());
  double skipped = 0;
  for (const auto& m : whole.seen.metrics) {
    if (m.values.contains("skipped_steps")) skipped = m.values.at("skipped_steps");
  }
  EXPECT_GT(skipped, 0) << "the loss scale is too low for this test";
  for (const auto shard : {v1::Parallel::NONE, v1::Parallel::OPTIMIZER}) {
    spec.mutable_parallel()->set_shard(shard);
    for (const Layout& layout : {Layout{.ranks = 3, .stages = 3}, Layout{.ranks = 4, .stages = 2},
                                 Layout{.ranks = 2, .stages = 2, .chunks = 2}}) {
      const OnRanks gang(spec, Root(layout.Words()), layout);
      gang.ExpectOk();
      ASSERT_FALSE(gang.seen.checkpoints.empty());
      EXPECT_EQ(gang.seen.TrainLosses(), whole.seen.TrainLosses());
      EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256,
                whole.seen.checkpoints.back().weights_sha256);
    }
  }
}

// All ranks end with what the first of them found, and none waits for another.
TEST_P(PipelineRun, NamesWhatIsNotFinite) {
  v1::JobSpec spec = Spec(6);
  spec.mutable_schedule()->set_learning_rate(1e38);
  spec.mutable_schedule()->set_warmup_steps(0);
  for (const Layout& layout : {Layout{.ranks = 3, .stages = 3}, Layout{.ranks = 4, .stages = 2},
                               Layout{.ranks = 2, .stages = 2, .chunks = 2}}) {
    const OnRanks gang(spec, Root(layout.Words()), layout);
    EXPECT_EQ(FaultOf(gang.ended[0]), Fault::kNumeric) << gang.ended[0];
    EXPECT_THAT(std::string(gang.ended[0].message()), testing::HasSubstr("value "));
    for (const absl::Status& ended : gang.ended) EXPECT_EQ(ended, gang.ended[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, PipelineRun,
    testing::Values(
        Family{"gpt", "model { gpt { layers: 4 heads: 3 width: 12 context: 8 dropout: 0.1 } }"},
        Family{"llama",
               "model { llama { layers: 4 heads: 4 kv_heads: 2 width: 16 context: 8 mlp_width: 21 "
               "} } optimizer { sgd { momentum: 0.9 } }"},
        Family{"bert", "model { bert { layers: 4 heads: 2 width: 12 context: 9 dropout: 0.1 } }",
               Family::kDocuments},
        Family{"vit", "model { vit { layers: 4 heads: 3 width: 12 patch: 4 dropout: 0.1 } }",
               Family::kImages}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trainyard::engine
