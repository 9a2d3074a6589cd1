// What a spec may say of where and how a job runs, of its checkpoints and of what it begins with.

#include <gtest/gtest.h>

#include <cmath>

#include "executor/plan/passes/shard_optimizer.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/spec/bad_specs.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

const std::vector<BadSpec>& RunningTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"zero slots", MlpSpec, [](auto& s) { s.mutable_resources()->set_min_slots(0); }, kInvalid,
       "spec.resources.min_slots: 0 is not in [1, 65536]"},
      {"max below min", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_min_slots(2);
         s.mutable_resources()->set_max_slots(1);
       },
       kInvalid, "spec.resources.max_slots: 1 is less than min_slots 2"},
      {"elastic of too few logical ranks", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_max_slots(4);
         s.mutable_resources()->set_device(v1::Resources::CPU);
         s.mutable_parallel()->set_logical_ranks(2);
       },
       kInvalid,
       "spec.parallel.logical_ranks: 2 cannot be shared by 4 slots: each takes at least one; use 4 "
       "or more, or fewer slots"},
      {"unknown precision", MlpSpec,
       [](auto& s) { s.mutable_precision()->set_compute(static_cast<v1::Precision::Compute>(9)); },
       kInvalid, "spec.precision.compute: 9 is no precision; use FP32, BF16 or FP16"},
      {"scale of a bf16 loss", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::BF16);
         s.mutable_precision()->mutable_loss_scale()->set_initial(2);
       },
       kInvalid, "spec.precision.loss_scale: has no use with BF16; use FP16 or leave it out"},
      {"scale of nothing", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::FP16);
         s.mutable_precision()->mutable_loss_scale()->set_initial(0);
       },
       kInvalid, "spec.precision.loss_scale.initial: 0 is not in [2^-16, 2^64]; try 65536"},
      {"scale that is no number", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::FP16);
         s.mutable_precision()->mutable_loss_scale()->set_initial(std::nan(""));
       },
       kInvalid, "spec.precision.loss_scale.initial: nan is not in [2^-16, 2^64]; try 65536"},
      {"scale that grows at once", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::FP16);
         s.mutable_precision()->mutable_loss_scale()->set_growth_interval(0);
       },
       kInvalid, "spec.precision.loss_scale.growth_interval: 0 is less than 1"},
      {"unknown device", MlpSpec,
       [](auto& s) { s.mutable_resources()->set_device(static_cast<v1::Resources::Device>(7)); },
       kInvalid, "spec.resources.device: 7 is no device; use CPU or CUDA, or leave it out"},
      {"logical ranks", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_min_slots(2);
         s.mutable_resources()->set_device(v1::Resources::CPU);
         s.mutable_parallel()->set_logical_ranks(1);
       },
       kInvalid,
       "spec.parallel.logical_ranks: 1 cannot be shared by 2 slots: each takes at least one; use 2 "
       "or "
       "more, or fewer slots"},
      {"gradients are not sharded in more rounds than a GPU records", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_min_slots(2);
         s.mutable_resources()->set_max_slots(8);
         s.mutable_training()->set_batch_size(512);
         s.mutable_training()->set_micro_batch_size(2);
         s.mutable_parallel()->set_logical_ranks(256);
         s.mutable_parallel()->set_shard(v1::Parallel::GRADIENTS);
       },
       kInvalid,
       "spec.parallel.shard: GRADIENTS lets 2 GPUs take 256 logical ranks in turn, in 128 rounds; "
       "expected at most 64: set spec.resources.min_slots to 4, or use fewer logical ranks, device "
       "CPU, or shard OPTIMIZER"},
      {"gradients of several micro-batches are not sharded", MlpSpec,
       [](auto& s) {
         s.mutable_training()->set_batch_size(32);
         s.mutable_training()->set_micro_batch_size(4);
         s.mutable_parallel()->set_logical_ranks(2);
         s.mutable_parallel()->set_shard(v1::Parallel::GRADIENTS);
       },
       kInvalid,
       "spec.parallel.shard: GRADIENTS hands out what a logical rank has made of its only "
       "micro-batch, and here each has 4: set spec.parallel.logical_ranks to 8, or "
       "spec.training.micro_batch_size to 16, or shard OPTIMIZER"},
      {"parameters are not sharded on GPUs", MlpSpec,
       [](auto& s) { s.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS); }, kUnbuilt,
       "spec.resources.device: a slot that may be a GPU with spec.parallel.shard PARAMETERS is not "
       "built yet; use CPU, or shard GRADIENTS"},
      {"parameters that have averages are not sharded", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_device(v1::Resources::CPU);
         s.mutable_training()->set_ema_decay(0.9);
         s.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS);
       },
       kUnbuilt,
       "spec.training.ema_decay: averages of parameters with spec.parallel.shard PARAMETERS is not "
       "built yet; leave it out, or use shard GRADIENTS"},
      {"parameters for several micro-batches are not sharded", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_device(v1::Resources::CPU);
         s.mutable_training()->set_batch_size(32);
         s.mutable_training()->set_micro_batch_size(4);
         s.mutable_parallel()->set_logical_ranks(2);
         s.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS);
       },
       kInvalid,
       "spec.parallel.shard: PARAMETERS hands out what a logical rank has made of its only "
       "micro-batch, and here each has 4: set spec.parallel.logical_ranks to 8, or "
       "spec.training.micro_batch_size to 16, or shard OPTIMIZER"},
      {"a second owner of one rank", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_device(v1::Resources::CPU);
         s.mutable_parallel()->set_second_owner(true);
       },
       kInvalid,
       "spec.parallel.second_owner: true, but the job has one slot, and so no second rank; set "
       "spec.resources.max_slots to 2 or more, or leave it out"},
      {"second owners on GPUs", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_max_slots(2);
         s.mutable_parallel()->set_second_owner(true);
       },
       kUnbuilt,
       "spec.resources.device: a slot that may be a GPU with spec.parallel.second_owner is not "
       "built yet; use CPU, or leave second_owner out"},
      {"second owners of shards of layers", GptSpec,
       [](auto& s) {
         s.mutable_resources()->set_max_slots(2);
         s.mutable_resources()->set_device(v1::Resources::CPU);
         s.mutable_parallel()->set_tensor(2);
         s.mutable_parallel()->set_second_owner(true);
       },
       kUnbuilt,
       "spec.parallel.second_owner: true with spec.parallel.tensor or pipeline above 1 is not "
       "built "
       "yet; leave it out, or use 1"},
      {"more shards of layers than can be planned", GptSpec,
       [](auto& s) {
         s.mutable_model()->mutable_gpt()->set_layers(100);
         s.mutable_parallel()->set_tensor(32);
       },
       kInvalid,
       "spec.parallel.tensor: 32 cuts 100 layers into 3200 shards; expected at most 2048, which is "
       "tensor 20"},
      {"unknown arithmetic", MlpSpec,
       [](auto& s) {
         s.mutable_parallel()->set_arithmetic(static_cast<v1::Parallel::Arithmetic>(9));
       },
       kInvalid,
       "spec.parallel.arithmetic: 9 is no choice; use SAME, SAME_IN_ATTEMPT or ANY, or leave it "
       "out"},
      {"Muon is not sharded", MlpSpec,
       [](auto& s) {
         s.mutable_optimizer()->mutable_muon();
         s.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
       },
       kUnbuilt, "spec.parallel.shard: OPTIMIZER with Muon is not built yet; use NONE"},
      {"no logical rank", MlpSpec, [](auto& s) { s.mutable_parallel()->set_logical_ranks(0); },
       kInvalid, "spec.parallel.logical_ranks: 0 is not in [1, 65536]"},
      {"tensor of a model that is not cut", MlpSpec,
       [](auto& s) { s.mutable_parallel()->set_tensor(2); }, kUnbuilt,
       "spec.parallel.tensor: 2 shards of mlp is not built yet; use 1; gpt, llama, bert "
       "and vit can be cut"},
      {"no tensor", MlpSpec, [](auto& s) { s.mutable_parallel()->set_tensor(0); }, kInvalid,
       "spec.parallel.tensor: 0 is not in [1, 128]"},
      {"tensor with sharded gradients", GptSpec,
       [](auto& s) {
         s.mutable_parallel()->set_tensor(2);
         s.mutable_parallel()->set_shard(v1::Parallel::GRADIENTS);
         s.mutable_resources()->set_device(v1::Resources::CPU);
       },
       kUnbuilt,
       "spec.parallel.shard: GRADIENTS with spec.parallel.tensor 2 is not built yet; use NONE or "
       "OPTIMIZER"},
      {"tensor with Muon", GptSpec,
       [](auto& s) {
         s.mutable_parallel()->set_tensor(2);
         s.mutable_resources()->set_device(v1::Resources::CPU);
         s.mutable_optimizer()->mutable_muon();
       },
       kUnbuilt,
       "spec.optimizer: muon with spec.parallel.tensor 2 is not built yet; use adamw or sgd"},
      {"pipeline", MlpSpec, [](auto& s) { s.mutable_parallel()->set_pipeline(4); }, kUnbuilt,
       "spec.parallel.pipeline: 4 stages of mlp is not built yet; use 1; gpt, llama, "
       "bert and vit can be cut"},
      {"sequence", MlpSpec, [](auto& s) { s.mutable_parallel()->set_sequence(0); }, kInvalid,
       "spec.parallel.sequence: 0 is less than 1"},
      {"no time for progress", MlpSpec,
       [](auto& s) { s.mutable_parallel()->set_progress_timeout_seconds(0); }, kInvalid,
       "spec.parallel.progress_timeout_seconds: 0 is not in [1, 86400]; leave it out to go by the "
       "time of a step"},
      {"progress within a time that is no number", MlpSpec,
       [](auto& s) { s.mutable_parallel()->set_progress_timeout_seconds(NAN); }, kInvalid,
       "spec.parallel.progress_timeout_seconds: nan is not in [1, 86400]; leave it out to go by "
       "the "
       "time of a step"},
      {"evaluation", MlpSpec, [](auto& s) { s.mutable_evaluation()->set_every_steps(-5); },
       kInvalid, "spec.evaluation.every_steps: -5 is less than 0"},
      {"evaluation samples", MlpSpec, [](auto& s) { s.mutable_evaluation()->set_max_samples(-5); },
       kInvalid, "spec.evaluation.max_samples: -5 is less than 0"},
      {"evaluation batch", MlpSpec, [](auto& s) { s.mutable_evaluation()->set_batch_size(0); },
       kInvalid, "spec.evaluation.batch_size: 0 is not in [1, 16777216]"},
      {"nothing held out", TokenSpec, [](auto& s) { s.mutable_evaluation()->set_every_steps(5); },
       kInvalid,
       "spec.evaluation.every_steps: the data has no held-out split to evaluate on; set one in "
       "spec.data"},
      {"nothing at the end", TokenSpec, [](auto& s) { s.mutable_evaluation()->set_at_end(true); },
       kInvalid,
       "spec.evaluation.at_end: the data has no held-out split to evaluate on; set one in "
       "spec.data"},
      {"keep 1", MlpSpec, [](auto& s) { s.mutable_checkpoint()->set_keep(1); }, kInvalid,
       "spec.checkpoint.keep: 1 is not in [2, 1000000]"},
      {"checkpoint", MlpSpec, [](auto& s) { s.mutable_checkpoint()->set_every_steps(-1); },
       kInvalid, "spec.checkpoint.every_steps: -1 is less than 0"},
      {"from", MlpSpec, [](auto& s) { s.mutable_fine_tune()->set_from("models/gpt2"); }, kInvalid,
       "spec.fine_tune.from: 'models/gpt2' is not an absolute path nor a file:// URI"},
      {"from a bucket", MlpSpec, [](auto& s) { s.mutable_fine_tune()->set_from("s3://b/m"); },
       kUnbuilt,
       "spec.fine_tune.from: the scheme s3:// is not built yet; use an absolute path or file://"},
      {"fine_tune", MlpSpec, [](auto& s) { s.mutable_fine_tune(); }, kInvalid,
       "spec.fine_tune: says nothing; set from or lora, or leave it out"},
      {"reinitialize", MlpSpec, [](auto& s) { s.mutable_fine_tune()->add_reinitialize("*"); },
       kInvalid, "spec.fine_tune.reinitialize: all weights are drawn without from; leave it out"},
      {"ignore", MlpSpec, [](auto& s) { s.mutable_fine_tune()->add_ignore("*"); }, kInvalid,
       "spec.fine_tune.ignore: there is nothing to ignore without from; leave it out"},
      {"empty pattern", MlpSpec,
       [](auto& s) {
         s.mutable_fine_tune()->set_from("/m");
         s.mutable_fine_tune()->add_ignore("");
       },
       kInvalid, "spec.fine_tune.ignore[0]: is empty; name tensors, or leave it out"},
      {"long pattern", MlpSpec,
       [](auto& s) {
         s.mutable_fine_tune()->set_from("/m");
         s.mutable_fine_tune()->add_reinitialize(std::string(513, '*'));
       },
       kInvalid, "spec.fine_tune.reinitialize[0]: 513 bytes are more than 512"},
      {"tokenizer of nothing", GptSpec,
       [](auto& s) {
         s.mutable_data()->mutable_text()->set_path("/t");
         s.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::FROM_CHECKPOINT);
       },
       kInvalid,
       "spec.data.text.tokenizer: FROM_CHECKPOINT takes that of spec.fine_tune.from, which is not "
       "set"},
      {"tokenizer of two", GptSpec,
       [](auto& s) {
         s.mutable_data()->mutable_text()->set_path("/t");
         s.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::FROM_CHECKPOINT);
         s.mutable_data()->mutable_text()->set_tokenizer_file("/t.json");
         s.mutable_fine_tune()->set_from("/m");
       },
       kInvalid,
       "spec.data.text.tokenizer_file: FROM_CHECKPOINT reads that of spec.fine_tune.from; leave it "
       "out, or set tokenizer: BPE"},
      {"restarts", MlpSpec, [](auto& s) { s.mutable_retry()->set_max_restarts(1001); }, kInvalid,
       "spec.retry.max_restarts: 1001 is not in [0, 1000]"},
      {"backoff", MlpSpec, [](auto& s) { s.mutable_retry()->set_backoff_seconds(kNan); }, kInvalid,
       "spec.retry.backoff_seconds: nan is not a finite number of at least 0"},
      {"long backoff", MlpSpec, [](auto& s) { s.mutable_retry()->set_backoff_seconds(301); },
       kInvalid, "spec.retry.backoff_seconds: 301 is more than 300"},
  };
  return table;
}

TEST(ResolveSpec, RefusesBadRunning) { ExpectRefused(RunningTable()); }

TEST(ResolveSpec, AcceptsSeveralSlots) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_resources()->set_min_slots(3);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  const v1::JobSpec resolved = *ResolveSpec(spec);
  EXPECT_EQ(resolved.parallel().logical_ranks(), 3);
  EXPECT_EQ(resolved.training().micro_batch_size(), 2);
}

// It may still run on several ranks, which share its logical ranks without a service.
TEST(ResolveSpec, AcceptsThatTheLinksOfOneRankAreChecked) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_parallel()->set_check_links(true);
  const auto resolved = ResolveSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->parallel().logical_ranks(), 1);
  EXPECT_TRUE(resolved->parallel().check_links());
}

// A worker of an older version refuses a spec with a field that it does not know.
TEST(ResolveSpec, WritesNoDefaultThatOlderWorkersDoNotKnow) {
  const v1::JobSpec resolved = *ResolveSpec(MlpSpec());
  EXPECT_EQ(resolved.parallel().shard(), v1::Parallel::SHARD_UNSPECIFIED);
  EXPECT_EQ(resolved.parallel().arithmetic(), v1::Parallel::ARITHMETIC_UNSPECIFIED);
  EXPECT_FALSE(resolved.parallel().has_progress_timeout_seconds());
  EXPECT_FALSE(resolved.parallel().check_links());
}

TEST(ShardsOptimizer, UnlessTheJobOrItsOptimizerSaysOtherwise) {
  v1::JobSpec spec = *ResolveSpec(MlpSpec());
  EXPECT_FALSE(ShardsOptimizer(spec, 1));
  EXPECT_TRUE(ShardsOptimizer(spec, 2));
  spec.mutable_parallel()->set_shard(v1::Parallel::NONE);
  EXPECT_FALSE(ShardsOptimizer(spec, 2));
  spec.mutable_parallel()->clear_shard();
  spec.mutable_parallel()->set_tensor(2);
  EXPECT_FALSE(ShardsOptimizer(spec, 2));
  spec.mutable_parallel()->clear_tensor();
  spec.mutable_optimizer()->mutable_muon();
  EXPECT_FALSE(ShardsOptimizer(spec, 2));
}

}  // namespace
}  // namespace trainyard::plan
