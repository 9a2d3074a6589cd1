#include "executor/plan/graph/plan.h"
#include "executor/plan/build.h"
#include "executor/plan/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/plan/cost/cost.h"
#include "executor/plan/cost/gpu_memory.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> NamesOf(const Plan& plan) {
  std::vector<std::string> names;
  for (const TensorId id : plan.parameters) names.push_back(plan.tensors[id].name);
  return names;
}

std::vector<int64_t> DimsOf(const Plan& plan, const std::string& parameter) {
  for (const TensorId id : plan.parameters) {
    if (plan.tensors[id].name == parameter) return plan.tensors[id].dims;
  }
  return {};
}

const Tensor& ParameterOf(const Plan& plan, const std::string& name) {
  for (const TensorId id : plan.parameters) {
    if (plan.tensors[id].name == name) return plan.tensors[id];
  }
  static const Tensor none;
  ADD_FAILURE() << name;
  return none;
}

// --- the families ------------------------------------------------------------------------------

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

// --- what must fit the data --------------------------------------------------------------------

TEST(Plan, RefusesWhatDoesNotFitTheData) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_vocab_size(10);
  EXPECT_EQ(PlanStatus(spec, TokenFacts(11)).message(),
            "spec.model.gpt.vocab_size: 10 is less than the 11 tokens of the data");

  EXPECT_THAT(std::string(PlanStatus(GptSpec(), ImageFacts(2, 2, 1, 2)).message()),
              HasSubstr("spec.model"));
  EXPECT_THAT(std::string(PlanStatus(MlpSpec(), TokenFacts(4)).message()), HasSubstr("spec.model"));

  spec = ConvnetSpec();
  spec.mutable_model()->mutable_convnet()->mutable_stages(0)->set_pool(3);
  spec.mutable_model()->mutable_convnet()->add_stages()->set_channels(2);
  EXPECT_THAT(
      std::string(PlanStatus(spec, ImageFacts(5, 5, 1, 2)).message()),
      HasSubstr("spec.model.convnet.stages[1].pool: a window of 2 does not fit the 1x1 image"));

  DataFacts few = TokenFacts(11);
  few.train_size = 5;
  EXPECT_EQ(PlanStatus(GptSpec(), few).message(),
            "spec.model.gpt.context: 5 needs at least 6 training tokens; the data has 5");

  DataFacts nothing;
  EXPECT_EQ(PlanStatus(MlpSpec(), nothing).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Plan, RefusesATensorThatNoMachineHolds) {
  v1::JobSpec spec = GptSpec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_context(1 << 20);
  gpt.set_width(65536);
  gpt.set_vocab_size(1 << 24);
  spec.mutable_training()->set_batch_size(1 << 24);
  DataFacts facts = TokenFacts(11);
  facts.train_size = 0;
  const absl::Status error = PlanStatus(spec, facts);
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error.message()), HasSubstr("is larger than any machine's memory"));
}

TEST(Plan, CountsStepsFromEpochs) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_training()->clear_steps();
  spec.mutable_training()->set_epochs(2);
  EXPECT_EQ(PlanOf(spec, ImageFacts(2, 2, 1, 2)).total_steps, 34);  // 200 samples in batches of 6

  spec = GptSpec();
  spec.mutable_training()->clear_steps();
  spec.mutable_training()->set_epochs(0.5);
  EXPECT_EQ(PlanOf(spec, TokenFacts(11)).total_steps, 16667);  // 100,000 samples of 5 tokens

  DataFacts unknown = TokenFacts(11);
  unknown.train_size = 0;
  EXPECT_THAT(std::string(PlanStatus(spec, unknown).message()), HasSubstr("spec.training.epochs"));

  spec.mutable_schedule()->set_shape(v1::Schedule::COSINE);
  spec.mutable_schedule()->set_warmup_steps(20000);
  EXPECT_THAT(std::string(PlanStatus(spec, TokenFacts(11)).message()),
              HasSubstr("spec.schedule.warmup_steps: 20000 leaves nothing of the 16667 steps"));
}

// --- inference ---------------------------------------------------------------------------------

TEST(InferencePlan, HoldsParametersAndOneForwardPassOnly) {
  const v1::JobSpec spec = *ResolveSpec(CharGptSpec());
  const Plan trained = *BuildPlan(spec, TokenFacts(65));
  const Plan plan = *BuildInferencePlan(spec, TokenFacts(65), 1);
  EXPECT_THAT(NamesOf(plan), testing::UnorderedElementsAreArray(NamesOf(trained)));
  EXPECT_TRUE(plan.begin.empty() && plan.micro.empty() && plan.norm.empty() && plan.end.empty());
  EXPECT_EQ(plan.evaluate.size(), trained.evaluate.size());
  EXPECT_EQ(plan.gradient_region.bytes + plan.optimizer_region.bytes, 0);
  EXPECT_EQ(plan.evaluation_batch, 1);
  EXPECT_LT(plan.arena_bytes, trained.arena_bytes / 4);
  EXPECT_FALSE(BuildInferencePlan(spec, TokenFacts(65), 0).ok());
}

// --- cost --------------------------------------------------------------------------------------

TEST(Cost, CountsTheProductsOfAStep) {
  // Forward 2mnk for both layers; backward 2mnk for each weight and for the second layer's input.
  const Plan plan = PlanOf(MlpSpec(), ImageFacts(4, 4, 1, 3));
  const double first = 2.0 * 6 * 16 * 5, second = 2.0 * 6 * 5 * 3;
  EXPECT_DOUBLE_EQ(plan.summary.flops_per_step(), 2 * first + 3 * second);
}

TEST(Cost, OfAStepDoesNotDependOnHowItIsCut) {
  v1::JobSpec spec = GptSpec();
  const double whole = PlanOf(spec, TokenFacts(11)).summary.flops_per_step();
  spec.mutable_training()->set_micro_batch_size(2);
  EXPECT_DOUBLE_EQ(PlanOf(spec, TokenFacts(11)).summary.flops_per_step(), whole);
  spec.mutable_training()->set_micro_batch_size(1);
  spec.mutable_resources()->set_min_slots(3);
  EXPECT_DOUBLE_EQ(PlanOf(spec, TokenFacts(11)).summary.flops_per_step(), whole);
}

TEST(Cost, OfGpt2IsSixFlopsAParameterAndTokenAndTheAttention) {
  const Plan plan = PlanOf(Gpt2Spec(), TokenFacts(50257));
  // Kaplan et al. 2020: 6 N per token; the attention adds 7/2 products of 2 T C per layer and token
  // here.
  const double tokens = 4 * 1024;
  const double matmuls = 6.0 * (124439808 - 1024 * 768) * tokens;
  const double attention = 7 * 2.0 * 1024 * 768 / 2 * 12 * tokens;
  EXPECT_NEAR(plan.summary.flops_per_step() / (matmuls + attention), 1, 0.01);
}

// The twin of the logits alone would take 823 MB.
TEST(Cost, TwinsOfLargeProductsAreCountedPieceByPiece) {
  v1::JobSpec spec = Gpt2Spec();
  for (const auto compute : {v1::Precision::BF16, v1::Precision::FP16}) {
    spec.mutable_precision()->set_compute(compute);
    const int64_t bytes = PlanOf(spec, TokenFacts(50257)).summary.workspace_bytes();
    const int64_t embedding = int64_t{4} * 50257 * 768, piece = int64_t{64} << 20;
    EXPECT_GT(bytes, embedding + piece / 2);
    EXPECT_LT(bytes, embedding + piece + piece / 8);
  }
}

TEST(Cost, BytesPerSlotAreTheSumOfTheirParts) {
  v1::JobSpec averaged = CharGptSpec();
  averaged.mutable_training()->set_ema_decay(0.999);
  v1::JobSpec narrow = CharGptSpec();
  narrow.mutable_precision()->set_compute(v1::Precision::BF16);
  for (const Plan& plan :
       {PlanOf(MlpSpec(), ImageFacts(4, 4, 1, 3)), PlanOf(ConvnetSpec(), ImageFacts(28, 28, 1, 10)),
        PlanOf(CharGptSpec(), TokenFacts(65)), PlanOf(averaged, TokenFacts(65)),
        PlanOf(narrow, TokenFacts(65))}) {
    const v1::PlanSummary& s = plan.summary;
    EXPECT_EQ(s.bytes_per_slot(), s.parameter_bytes() + s.weight_copy_bytes() + s.gradient_bytes() +
                                      s.optimizer_bytes() + s.ema_bytes() + s.buffer_bytes() +
                                      s.activation_bytes() + s.workspace_bytes() +
                                      s.staging_bytes() + s.process_bytes() - s.shared_bytes());
    EXPECT_EQ(plan.arena_bytes, s.parameter_bytes() + s.weight_copy_bytes() + s.gradient_bytes() +
                                    s.optimizer_bytes() + s.ema_bytes() + s.buffer_bytes() +
                                    s.activation_bytes() - s.shared_bytes());
    EXPECT_EQ(s.total_steps(), plan.total_steps);
  }
}

// What the GPU holds, and nothing of its host.
TEST(Cost, BytesPerSlotOfAGpuAreTheArenaTheInboxTheScratchAndTheContext) {
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  const Plan plan = PlanOf(spec, TokenFacts(65));
  const v1::PlanSummary& s = plan.summary;
  EXPECT_EQ(s.device(), v1::Resources::CUDA);
  EXPECT_EQ(s.process_bytes(), kGpuProcessBytes);
  // Ids and targets of 12 x 64 tokens, and the state of the step.
  EXPECT_EQ(s.inbox_bytes(), 2 * 12 * 64 * 4 + 256);
  EXPECT_GT(s.workspace_bytes(), int64_t{32} << 20);
  EXPECT_EQ(s.bytes_per_slot(),
            plan.arena_bytes + s.inbox_bytes() + s.workspace_bytes() + s.process_bytes());
  // A copy on the host is what every checkpoint of a GPU is written from.
  EXPECT_GT(s.staging_bytes(), s.parameter_bytes() + s.optimizer_bytes());
  spec.mutable_data()->set_prefetch(64);
  const v1::PlanSummary ahead = PlanOf(spec, TokenFacts(65)).summary;
  EXPECT_GT(ahead.staging_bytes(), s.staging_bytes());
  EXPECT_EQ(ahead.bytes_per_slot(), s.bytes_per_slot());

  for (const auto device : {v1::Resources::CPU, v1::Resources::DEVICE_UNSPECIFIED}) {
    spec.mutable_resources()->set_device(device);
    const v1::PlanSummary cpu = PlanOf(spec, TokenFacts(65)).summary;
    EXPECT_EQ(cpu.device(), v1::Resources::CPU);
    EXPECT_EQ(cpu.inbox_bytes(), 0);
    EXPECT_LT(cpu.process_bytes(), kGpuProcessBytes);
  }
}

// Convolutions may want as much as cuDNN is allowed.
TEST(Cost, OfAGpuCountsTheWorkspaceOfItsLibraries) {
  const auto workspace = [](v1::JobSpec spec, const DataFacts& facts) {
    spec.mutable_resources()->set_device(v1::Resources::CUDA);
    return PlanOf(spec, facts).summary.workspace_bytes();
  };
  constexpr int64_t kMiB = 1 << 20;
  const int64_t products = workspace(MlpSpec(), ImageFacts(4, 4, 1, 3));
  EXPECT_GT(products, 32 * kMiB);
  EXPECT_LT(products, 33 * kMiB);
  const int64_t convolutions = workspace(ConvnetSpec(), ImageFacts(28, 28, 1, 10));
  EXPECT_GT(convolutions, 256 * kMiB);
  EXPECT_LT(convolutions, 257 * kMiB);
}

// Weights, gradients and both moments in fp32: 48 GB and more, which a checkpoint copies to the
// host.
TEST(Cost, AModelOfThreeBillionParametersFitsAGpuOfEightyGigabytes) {
  v1::JobSpec spec = LlamaSpec();
  v1::Llama& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(29);
  llama.set_heads(24);
  llama.set_kv_heads(8);
  llama.set_width(3072);
  llama.set_mlp_width(8192);
  llama.set_context(2048);
  llama.set_vocab_size(32000);
  spec.mutable_training()->set_batch_size(1);
  spec.mutable_training()->set_micro_batch_size(1);
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_adamw();
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  spec.mutable_checkpoint()->set_every_steps(100);
  const auto summary = [&](v1::Resources::Device device) {
    spec.mutable_resources()->set_device(device);
    return PlanOf(spec, TokenFacts(1000)).summary;
  };
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  const v1::PlanSummary gpu = summary(v1::Resources::CUDA);
  EXPECT_GT(gpu.parameters(), 3e9);
  EXPECT_LT(gigabytes(gpu.bytes_per_slot()), 0.97 * 80);
  EXPECT_GT(gigabytes(summary(v1::Resources::CPU).bytes_per_slot()), 80);
}

TEST(Plan, CountsWhatTheDataTakesInHostMemory) {
  const auto staging = [](const v1::JobSpec& spec, const DataFacts& facts) {
    return PlanOf(spec, facts).summary.staging_bytes();
  };
  DataFacts text = TokenFacts(65);
  const int64_t none = staging(CharGptSpec(), text);
  text.unsized_bytes = 1'000'000'007;
  EXPECT_EQ(staging(CharGptSpec(), text), none + text.unsized_bytes);

  // Ids past 16 bits take 32.
  const auto ids = [&](int64_t vocab) {
    DataFacts facts = TokenFacts(vocab);
    const int64_t before = staging(CharGptSpec(), facts);
    facts.train_size += 1'000'000;
    return staging(CharGptSpec(), facts) - before;
  };
  EXPECT_EQ(ids(65536), 2'000'000);
  EXPECT_EQ(ids(65537), 4'000'000);

  // A score and a class of each click that is evaluated, twice where the best are drawn.
  v1::JobSpec clicks = DlrmSpec();
  DataFacts facts = ClickFacts(3, 2, 5);
  facts.train_size = 1000;
  facts.validation_size = 1;
  const int64_t one = staging(clicks, facts);
  facts.validation_size = 1'000'001;
  EXPECT_EQ(staging(clicks, facts), one + 16'000'000);
  clicks.mutable_evaluation()->set_max_samples(501);
  EXPECT_EQ(staging(clicks, facts), one + 500 * 16);
}

// The last checkpoint needs no copy: training waits for it.
TEST(Cost, OnlyCheckpointsThatTrainingGoesOnBesideAreCopied) {
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_training()->set_ema_decay(0.999);
  const v1::PlanSummary at_end = PlanOf(spec, TokenFacts(65)).summary;
  const int64_t state = at_end.parameter_bytes() + at_end.optimizer_bytes() + at_end.ema_bytes();
  EXPECT_LT(at_end.staging_bytes(), state / 4);
  spec.mutable_checkpoint()->set_every_steps(10);
  EXPECT_EQ(PlanOf(spec, TokenFacts(65)).summary.staging_bytes(), at_end.staging_bytes() + state);
  spec.mutable_checkpoint()->set_every_steps(0);
  spec.mutable_evaluation()->set_every_steps(10);
  spec.mutable_checkpoint()->mutable_best();
  EXPECT_EQ(PlanOf(spec, TokenFacts(65)).summary.staging_bytes(), at_end.staging_bytes() + state);
}

TEST(Describe, TellsAGpusMemoryFromItsHosts) {
  v1::JobSpec spec = GptSpec();
  EXPECT_THAT(Describe(PlanOf(spec, TokenFacts(11))),
              testing::AllOf(HasSubstr("\n  staging "), HasSubstr("\n  process "),
                             testing::Not(HasSubstr("host staging"))));
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  EXPECT_THAT(
      Describe(PlanOf(spec, TokenFacts(11))),
      testing::AllOf(HasSubstr("\n  inbox "), HasSubstr("\n  context       500.0 MiB\n"),
                     HasSubstr("\nhost staging    "), testing::Not(HasSubstr("\n  staging "))));
}

TEST(Describe, NamesTheFiguresAndEveryKernel) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  const std::string text = Describe(plan);
  EXPECT_THAT(text, HasSubstr("parameters      1888"));
  EXPECT_THAT(text, HasSubstr("each micro-batch: 59 kernels"));
  EXPECT_THAT(text, HasSubstr("\npass residual_norm: "));
  EXPECT_THAT(text, HasSubstr(", kernels of a micro-batch 63 -> 59\n"));
  EXPECT_THAT(text, HasSubstr("\npass share_gradients: "));
  EXPECT_THAT(text, HasSubstr("  add_layer_norm       transformer.embedding[30, 8] "));
  EXPECT_THAT(text, HasSubstr("+transformer.wte.weight.grad[11, 8]"));
  EXPECT_THAT(Describe(PlanOf(MlpSpec(), ImageFacts(5, 4, 3, 7))),
              HasSubstr("normalize_images     input[6, 5, 4, 3]:u8 -> images[6, 5, 4, 3]\n"));
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_EQ(lines, 17 + 2 * 5 +
                       static_cast<int64_t>(plan.begin.size() + plan.micro.size() +
                                            plan.norm.size() + plan.end.size() +
                                            plan.evaluate_begin.size() + plan.evaluate.size()));
}

}  // namespace
}  // namespace trainyard::plan
