#include "executor/plan/cost/cost.h"

#include <gtest/gtest.h>

#include "executor/plan/build.h"
#include "executor/plan/cost/gang_memory.h"
#include "executor/plan/cost/gpu_memory.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

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
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  EXPECT_DOUBLE_EQ(PlanOf(spec, TokenFacts(11)).summary.flops_per_step(), whole);
}

// The service plans for one rank and places all by it.
void ExpectRanksNeedTheSame(v1::JobSpec spec, const DataFacts& facts, bool sharded) {
  // Gradients are sharded in one round, where activations lie in the memory of sums.
  const bool parameters = spec.parallel().shard() == v1::Parallel::PARAMETERS;
  const bool gradients = parameters || spec.parallel().shard() == v1::Parallel::GRADIENTS;
  spec.mutable_training()->set_batch_size(gradients ? 3 : 8);
  spec.mutable_training()->set_micro_batch_size(1);
  if (!parameters) spec.mutable_training()->set_ema_decay(0.9);
  spec.mutable_resources()->set_min_slots(3);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_logical_ranks(gradients ? 3 : 4);
  spec = ResolveSpec(spec).value();
  const Plan first = BuildPlan(spec, facts, 0).value();
  EXPECT_EQ(first.sharded, sharded);
  for (const int64_t rank : {1, 2}) {
    const Plan other = BuildPlan(spec, facts, rank).value();
    EXPECT_EQ(other.summary.DebugString(), first.summary.DebugString()) << rank;
    EXPECT_LE(other.optimizer_region.bytes, other.summary.optimizer_bytes());
  }
}

TEST(Cost, EveryRankOfAJobNeedsTheSame) {
  v1::JobSpec spec = GptSpec();
  ExpectRanksNeedTheSame(spec, TokenFacts(5000), /*sharded=*/true);
  spec.mutable_optimizer()->mutable_muon();
  ExpectRanksNeedTheSame(spec, TokenFacts(5000), /*sharded=*/false);
  // One rank alone steps the first layer, but its products take more scratch than LAMB's step.
  spec = MlpSpec();
  spec.mutable_optimizer()->mutable_lamb()->set_always_adapt(true);
  ExpectRanksNeedTheSame(spec, ImageFacts(4000, 4000, 3, 3), /*sharded=*/true);
  // Likewise its share of the gradients' sums, which activations leave free on every rank.
  spec.mutable_parallel()->set_shard(v1::Parallel::GRADIENTS);
  ExpectRanksNeedTheSame(spec, ImageFacts(400, 400, 3, 3), /*sharded=*/true);
  for (const auto shard : {v1::Parallel::GRADIENTS, v1::Parallel::PARAMETERS}) {
    spec = GptSpec();
    spec.mutable_parallel()->set_shard(shard);
    ExpectRanksNeedTheSame(spec, TokenFacts(5000), /*sharded=*/true);
  }
}

TEST(Cost, LogicalRanksOfOneRankNeedGradientsForThoseThatWait) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_training()->set_batch_size(8);
  spec.mutable_training()->set_micro_batch_size(1);
  const Plan whole = PlanOf(spec, TokenFacts(11));
  spec.mutable_parallel()->set_logical_ranks(8);
  const Plan cut = PlanOf(spec, TokenFacts(11));
  EXPECT_EQ(whole.partial_sums.size(), 0u);
  EXPECT_EQ(cut.partial_sums.size(), 3u);
  EXPECT_EQ(cut.summary.gradient_bytes(),
            4 * whole.summary.gradient_bytes() + 3 * cut.sums_region.bytes);
  spec.mutable_resources()->set_min_slots(8);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  const Plan shared = PlanOf(spec, TokenFacts(11));
  EXPECT_EQ(shared.summary.gradient_bytes(), whole.summary.gradient_bytes());
  EXPECT_GE(shared.summary.staging_bytes(), 7 * kLinkBytes);
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

// 2 MiB of 16-bit gradients of scores per head and sample, up to what may be there at once, and
// beside them a number per row.
TEST(Cost, OfAGpuCountsThePieceInWhichAttentionKeepsGradientsOfScores) {
  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  constexpr int64_t kMiB = 1 << 20;
  for (const auto& [batch, scores] :
       {std::pair(8, 8 * 12 * 2 * kMiB), std::pair(32, 512 * kMiB), std::pair(64, 512 * kMiB)}) {
    spec.mutable_training()->set_batch_size(batch);
    const int64_t bytes = PlanOf(spec, TokenFacts(50257)).summary.workspace_bytes();
    EXPECT_GT(bytes, scores) << batch;
    EXPECT_LE(bytes, scores + 3 * kMiB) << batch;
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
  text.held_bytes = 1'000'000'007;
  EXPECT_EQ(staging(CharGptSpec(), text), none + text.held_bytes);

  // Sizes alone say nothing of memory: the source does.
  text.train_size += 1'000'000;
  EXPECT_EQ(staging(CharGptSpec(), text), none + text.held_bytes);

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

TEST(ImageSpec, IsPlannedWithItsPrefetchedSamplesAndItsIndex) {
  DataFacts facts = ImageFacts(224, 224, 3, 10);
  facts.bytes_per_thread = int64_t{12} << 20;
  v1::JobSpec spec = FolderSpec();
  spec.mutable_data()->set_threads(1);
  const int64_t one = PlanOf(spec, facts).summary.staging_bytes();
  spec.mutable_data()->set_threads(3);
  EXPECT_EQ(PlanOf(spec, facts).summary.staging_bytes() - one, int64_t{2} * 12 << 20);
  spec.mutable_data()->set_prefetch(5);
  const int64_t batch =
      spec.training().batch_size() * (int64_t{224} * 224 * 3 + 4);  // bytes, a label
  EXPECT_EQ(PlanOf(spec, facts).summary.staging_bytes() - one, (int64_t{2} * 12 << 20) + batch);
}

}  // namespace
}  // namespace trainyard::plan
