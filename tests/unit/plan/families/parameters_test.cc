// gpt, resnet, mlp and convnet: how many parameters they have, and their names, layouts and first
// values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/plan/parameters.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::ElementsAre;

TEST(Plan, Gpt2HasTheParametersOfGpt2) {
  const Plan tied = PlanOf(Gpt2Spec(), TokenFacts(50257));
  EXPECT_EQ(tied.summary.parameters(), 124439808);
  EXPECT_EQ(tied.parameters.size(), 148u);  // as GPT2LMHeadModel.named_parameters()

  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  EXPECT_EQ(PlanOf(spec, TokenFacts(50257)).summary.parameters(), 124439808 + 50257 * 768);
  spec.mutable_model()->mutable_gpt()->set_vocab_size(50304);
  EXPECT_EQ(PlanOf(spec, TokenFacts(50257)).summary.parameters(),
            124439808 + (50304 * 2 - 50257) * 768);
}

TEST(Plan, CharacterGptHasTheParametersOfNanoGpt) {
  // nanoGPT prints 0.80M for this configuration: positions are not among those it counts.
  const Plan plan = PlanOf(CharGptSpec(), TokenFacts(65));
  EXPECT_EQ(plan.summary.parameters() - 64 * 128, 795904);
}

TEST(Plan, GptNamesAndLayoutsAreThoseOfTransformers) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  EXPECT_EQ(DimsOf(plan, "transformer.wte.weight"), (std::vector<int64_t>{11, 8}));
  EXPECT_EQ(DimsOf(plan, "transformer.wpe.weight"), (std::vector<int64_t>{5, 8}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.ln_1.weight"), (std::vector<int64_t>{8}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.ln_1.bias"), (std::vector<int64_t>{8}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.attn.c_attn.weight"), (std::vector<int64_t>{8, 24}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.attn.c_attn.bias"), (std::vector<int64_t>{24}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.attn.c_proj.weight"), (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.ln_2.weight"), (std::vector<int64_t>{8}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.mlp.c_fc.weight"), (std::vector<int64_t>{8, 32}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.mlp.c_proj.weight"), (std::vector<int64_t>{32, 8}));
  EXPECT_EQ(DimsOf(plan, "transformer.h.1.mlp.c_proj.bias"), (std::vector<int64_t>{8}));
  EXPECT_EQ(DimsOf(plan, "transformer.ln_f.bias"), (std::vector<int64_t>{8}));
  EXPECT_TRUE(DimsOf(plan, "lm_head.weight").empty());
  EXPECT_EQ(plan.parameters.size(), 2u + 2 * 12 + 2);

  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  spec.mutable_model()->mutable_gpt()->set_bias(false);
  const Plan other = PlanOf(spec, TokenFacts(11));
  EXPECT_EQ(DimsOf(other, "lm_head.weight"), (std::vector<int64_t>{11, 8}));
  EXPECT_EQ(other.parameters.size(), 2u + 2 * 6 + 1 + 1);
}

TEST(Plan, GptStartsAsNanoGptDoes) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  EXPECT_DOUBLE_EQ(ParameterOf(plan, "transformer.wte.weight").init_std, 0.02);
  EXPECT_DOUBLE_EQ(ParameterOf(plan, "transformer.h.0.mlp.c_fc.weight").init_std, 0.02);
  EXPECT_DOUBLE_EQ(ParameterOf(plan, "transformer.h.0.attn.c_proj.weight").init_std, 0.02 / 2);
  EXPECT_DOUBLE_EQ(ParameterOf(plan, "transformer.h.0.mlp.c_proj.weight").init_std, 0.02 / 2);
  EXPECT_EQ(ParameterOf(plan, "transformer.ln_f.weight").init_value, 1);
  EXPECT_EQ(ParameterOf(plan, "transformer.ln_f.weight").init_std, 0);
  EXPECT_EQ(ParameterOf(plan, "transformer.ln_f.bias").init_value, 0);
  EXPECT_EQ(ParameterOf(plan, "transformer.h.0.mlp.c_fc.bias").init_std, 0);
}

int64_t ResnetParameters(int depth, v1::Resnet::Stem stem, const DataFacts& facts) {
  v1::JobSpec spec = ResnetSpec();
  spec.mutable_model()->mutable_resnet()->set_depth(depth);
  spec.mutable_model()->mutable_resnet()->set_stem(stem);
  spec.mutable_model()->mutable_resnet()->clear_width();
  return PlanOf(spec, facts).summary.parameters();
}

TEST(Plan, ResnetsHaveTheParametersOfTorchvision) {
  const DataFacts photos = ImageFacts(224, 224, 3, 1000);
  EXPECT_EQ(ResnetParameters(18, v1::Resnet::IMAGENET, photos), 11689512);
  EXPECT_EQ(ResnetParameters(34, v1::Resnet::IMAGENET, photos), 21797672);
  EXPECT_EQ(ResnetParameters(50, v1::Resnet::IMAGENET, photos), 25557032);
  EXPECT_EQ(ResnetParameters(101, v1::Resnet::IMAGENET, photos), 44549160);
  EXPECT_EQ(ResnetParameters(152, v1::Resnet::IMAGENET, photos), 60192808);
  // One channel and a 3x3 stem in place of three and 7x7; ten classes.
  EXPECT_EQ(ResnetParameters(18, v1::Resnet::CIFAR, ImageFacts(28, 28, 1, 10)),
            11689512 - 64 * (3 * 49 - 9) - 990 * 513);
}

TEST(Plan, ResnetNamesAndLayoutsAreThoseOfTransformers) {
  v1::JobSpec spec = ResnetSpec();
  const Plan basic = PlanOf(spec, ImageFacts(28, 28, 1, 10));
  const auto expect = [](const Plan& plan, const std::string& name, std::vector<int64_t> dims) {
    EXPECT_EQ(DimsOf(plan, name), dims) << name;
  };
  expect(basic, "resnet.embedder.embedder.convolution.weight", {4, 1, 3, 3});
  expect(basic, "resnet.embedder.embedder.normalization.weight", {4});
  const std::string stage = "resnet.encoder.stages.1.layers.0.";
  expect(basic, stage + "shortcut.convolution.weight", {8, 4, 1, 1});
  expect(basic, stage + "shortcut.normalization.bias", {8});
  expect(basic, stage + "layer.0.convolution.weight", {8, 4, 3, 3});
  expect(basic, stage + "layer.1.convolution.weight", {8, 8, 3, 3});
  expect(basic, stage + "layer.2.convolution.weight", {});
  expect(basic, "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight", {});
  expect(basic, "classifier.1.weight", {10, 32});
  expect(basic, "classifier.1.bias", {10});
  EXPECT_EQ(basic.parameters.size(), 62u);  // as torchvision's resnet18
  EXPECT_EQ(basic.buffers.size(), 2u * 20);

  spec.mutable_model()->mutable_resnet()->set_depth(50);
  const Plan deep = PlanOf(spec, ImageFacts(28, 28, 1, 10));
  expect(deep, stage + "layer.0.convolution.weight", {8, 16, 1, 1});
  expect(deep, stage + "layer.1.convolution.weight", {8, 8, 3, 3});
  expect(deep, stage + "layer.2.convolution.weight", {32, 8, 1, 1});
  expect(deep, "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight", {16, 4, 1, 1});
  EXPECT_EQ(deep.parameters.size(), 161u);  // as torchvision's resnet50
}

TEST(Plan, ResnetStridesInTheThreeByThreeConvolutionAndStartsByFanOut) {
  v1::JobSpec spec = ResnetSpec();
  spec.mutable_model()->mutable_resnet()->set_depth(50);
  const Plan plan = PlanOf(spec, ImageFacts(32, 32, 3, 10));
  int strided = 0;
  for (const Op& op : plan.micro) {
    const auto* o = std::get_if<ConvolutionForward>(&op);
    if (o == nullptr || o->shape.stride == 1) continue;
    const bool shortcut = plan.tensors[o->w].name.find("shortcut") != std::string::npos;
    EXPECT_EQ(o->shape.kernel_height, shortcut ? 1 : 3) << plan.tensors[o->w].name;
    ++strided;
  }
  EXPECT_EQ(strided, 6);
  const std::string block = "resnet.encoder.stages.0.layers.1.layer.2.";
  EXPECT_DOUBLE_EQ(ParameterOf(plan, block + "convolution.weight").init_std, std::sqrt(2.0 / 16));
  EXPECT_EQ(ParameterOf(plan, block + "normalization.weight").init_value, 1);
  for (const TensorId id : plan.buffers) {
    const bool variance = plan.tensors[id].name.find("running_var") != std::string::npos;
    EXPECT_EQ(plan.tensors[id].init_value, variance ? 1 : 0);
  }
}

TEST(Plan, ResnetRefusesBatchesWithoutVariance) {
  v1::JobSpec spec = ResnetSpec();
  spec.mutable_training()->set_micro_batch_size(1);
  EXPECT_EQ(PlanStatus(spec, ImageFacts(8, 8, 1, 10)).message(),
            "spec.training.micro_batch_size: 1 leaves "
            "resnet.encoder.stages.3.layers.0.shortcut.normalization a single value per channel, "
            "which has no variance; use at least 2");
  EXPECT_TRUE(PlanStatus(spec, ImageFacts(9, 8, 1, 10)).ok());
  spec.mutable_training()->set_micro_batch_size(2);
  EXPECT_TRUE(PlanStatus(spec, ImageFacts(1, 1, 1, 10)).ok());
}

TEST(Plan, MlpNamesAndLayoutsAreThoseOfTorchLinear) {
  const Plan plan = PlanOf(MlpSpec(), ImageFacts(4, 3, 2, 7));
  EXPECT_THAT(NamesOf(plan),
              ElementsAre("layers.0.weight", "layers.1.weight", "layers.0.bias", "layers.1.bias"));
  EXPECT_THAT(DimsOf(plan, "layers.0.weight"), ElementsAre(5, 24));
  EXPECT_THAT(DimsOf(plan, "layers.1.weight"), ElementsAre(7, 5));
  EXPECT_DOUBLE_EQ(ParameterOf(plan, "layers.0.weight").init_std, std::sqrt(2.0 / 24));
  EXPECT_DOUBLE_EQ(ParameterOf(plan, "layers.1.weight").init_std, std::sqrt(1.0 / 5));
}

TEST(Plan, ConvnetFlattensWhatItsPoolingLeaves) {
  v1::JobSpec spec = ConvnetSpec();
  spec.mutable_model()->mutable_convnet()->add_stages()->set_channels(4);
  const Plan plan = PlanOf(spec, ImageFacts(28, 28, 1, 10));
  EXPECT_THAT(NamesOf(plan), ElementsAre("stages.0.0.weight", "stages.1.0.weight",
                                         "layers.0.weight", "layers.1.weight", "stages.0.0.bias",
                                         "stages.1.0.bias", "layers.0.bias", "layers.1.bias"));
  EXPECT_THAT(DimsOf(plan, "stages.1.0.weight"), ElementsAre(4, 3, 3, 3));
  EXPECT_THAT(DimsOf(plan, "layers.0.weight"), ElementsAre(7, 4 * 7 * 7));
}

}  // namespace
}  // namespace trainyard::plan
