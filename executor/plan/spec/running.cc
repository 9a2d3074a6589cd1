// Where and how a job runs: precision, resources, the mesh, evaluation, checkpoints, retries.

#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kMostSlots = 65536;

absl::Status ResolveLossScale(v1::LossScale& loss_scale) {
  const std::string at = "spec.precision.loss_scale.";
  if (!loss_scale.has_initial()) loss_scale.set_initial(65536);
  if (!loss_scale.has_growth_interval()) loss_scale.set_growth_interval(2000);
  if (!(loss_scale.initial() >= 0x1p-16 && loss_scale.initial() <= 0x1p64)) {
    return Invalid(at + "initial", loss_scale.initial(), " is not in [2^-16, 2^64]; try 65536");
  }
  return CheckAtLeast(at + "growth_interval", loss_scale.growth_interval(), 1);
}

}  // namespace

absl::Status ResolvePrecision(v1::Precision& precision) {
  if (precision.compute() == v1::Precision::COMPUTE_UNSPECIFIED) {
    precision.set_compute(v1::Precision::FP32);
  }
  if (!v1::Precision::Compute_IsValid(precision.compute())) {
    return Invalid("spec.precision.compute", static_cast<int>(precision.compute()),
                   " is no precision; use FP32, BF16 or FP16");
  }
  if (precision.compute() == v1::Precision::FP16) {
    return ResolveLossScale(*precision.mutable_loss_scale());
  }
  if (!precision.has_loss_scale()) return absl::OkStatus();
  return Invalid("spec.precision.loss_scale", "has no use with ",
                 v1::Precision::Compute_Name(precision.compute()), "; use FP16 or leave it out");
}

absl::Status ResolveResources(v1::Resources& resources) {
  const std::string at = "spec.resources.";
  if (!resources.has_min_slots()) resources.set_min_slots(1);
  if (!resources.has_max_slots()) resources.set_max_slots(resources.min_slots());
  TY_RETURN_IF_ERROR(CheckRange(at + "min_slots", resources.min_slots(), 1, kMostSlots));
  TY_RETURN_IF_ERROR(CheckRange(at + "max_slots", resources.max_slots(), 1, kMostSlots));
  if (resources.max_slots() < resources.min_slots()) {
    return Invalid(at + "max_slots", resources.max_slots(), " is less than min_slots ",
                   resources.min_slots());
  }
  if (!v1::Resources::Device_IsValid(resources.device())) {
    return Invalid(at + "device", static_cast<int>(resources.device()),
                   " is no device; use CPU or CUDA, or leave it out");
  }
  return absl::OkStatus();
}

namespace {

// The next multiple of `sharing` that the job may have instead of `slots`: the one above, else, of
// few logical ranks or very many slots, the one below; 0: neither.
int64_t SlotsThatGroup(const v1::Parallel& parallel, int64_t slots, int64_t sharing) {
  const int64_t below = slots / sharing * sharing, above = below + sharing;
  const bool said = parallel.has_logical_ranks();
  if (above <= kMostSlots && (!said || parallel.logical_ranks() >= above / sharing)) return above;
  return said && parallel.logical_ranks() < below / sharing ? 0 : below;
}

// How many groups of ranks, which share the shards of a logical rank, `slots` slots are.
absl::StatusOr<int64_t> GroupsOf(const v1::Parallel& parallel, int64_t slots) {
  if (!parallel.layout().has_tensor()) return slots;
  const std::string at = "spec.parallel.layout.tensor";
  const int32_t sharing = parallel.layout().tensor();
  if (sharing < 1 || sharing > parallel.tensor()) {
    return Invalid(at, sharing, " is not in [1, ", parallel.tensor(),
                   "]: so many ranks share the shards of a logical rank, of which there are "
                   "spec.parallel.tensor");
  }
  if (slots % sharing != 0) {
    const int64_t instead = SlotsThatGroup(parallel, slots, sharing);
    return Invalid(at, sharing, " does not divide the ", slots, " slots of spec.resources; ",
                   instead > 0 ? absl::StrCat("use ", instead, " slots, or ") : "",
                   "let fewer ranks share");
  }
  return slots / sharing;
}

}  // namespace

absl::Status ResolveParallel(v1::Parallel& parallel, int64_t slots) {
  const std::string at = "spec.parallel.";
  if (!parallel.has_tensor()) parallel.set_tensor(1);
  if (!parallel.has_pipeline()) parallel.set_pipeline(1);
  if (!parallel.has_sequence()) parallel.set_sequence(1);
  TY_RETURN_IF_ERROR(CheckRange(at + "tensor", parallel.tensor(), 1, 128));
  TY_ASSIGN_OR_RETURN(const int64_t groups, GroupsOf(parallel, slots));
  // The default is not written down: workers of an older version know no such field.
  if (parallel.layout().tensor() <= 1) parallel.clear_layout();
  // The default does not go by the layout, which changes no bit.
  if (!parallel.has_logical_ranks()) parallel.set_logical_ranks(static_cast<int32_t>(slots));
  TY_RETURN_IF_ERROR(
      CheckRange(at + "logical_ranks", parallel.logical_ranks(), 1, kMostLogicalRanks));
  if (parallel.logical_ranks() < groups) {
    return Invalid(at + "logical_ranks", parallel.logical_ranks(), " cannot be shared by ", slots,
                   " slots: ", groups == slots ? "each takes" : "each group of them takes",
                   " at least one; use ", groups, " or more, or fewer slots");
  }
  const std::pair<const char*, int32_t> axes[] = {{"pipeline", parallel.pipeline()},
                                                  {"sequence", parallel.sequence()}};
  for (const auto& [axis, size] : axes) {
    TY_RETURN_IF_ERROR(CheckAtLeast(at + axis, size, 1));
    if (size > 1) {
      return NotBuilt(at + axis, absl::StrCat(size, " ", axis, "-parallel ranks"), "use 1");
    }
  }
  const double timeout = parallel.progress_timeout_seconds();
  if (parallel.has_progress_timeout_seconds() && !(timeout >= 1 && timeout <= 86400)) {
    return Invalid(at + "progress_timeout_seconds", timeout,
                   " is not in [1, 86400]; leave it out to go by the time of a step");
  }
  return absl::OkStatus();
}

absl::Status CheckArithmetic(const v1::Parallel& parallel) {
  const std::string at = "spec.parallel.arithmetic";
  switch (parallel.arithmetic()) {
    // The default is not written down: workers of an older version know no such field.
    case v1::Parallel::ARITHMETIC_UNSPECIFIED:
    case v1::Parallel::ANY:
    case v1::Parallel::SAME_IN_ATTEMPT:
    case v1::Parallel::SAME:
      return absl::OkStatus();
    default:
      return Invalid(at, static_cast<int>(parallel.arithmetic()),
                     " is no choice; use SAME, SAME_IN_ATTEMPT or ANY, or leave it out");
  }
}

// Planning takes time by the square of them.
constexpr int64_t kMostLayerShards = 2048;

// What is not built yet where several ranks share the shards of a logical rank.
absl::Status CheckSharedShards(const v1::JobSpec& spec) {
  const std::string with =
      absl::StrCat(" with spec.parallel.layout.tensor ", spec.parallel().layout().tensor());
  if (spec.resources().min_slots() != spec.resources().max_slots()) {
    return NotBuilt("spec.resources.min_slots", "an elastic job" + with,
                    absl::StrCat("use as many as max_slots, ", spec.resources().max_slots()));
  }
  if (spec.training().on_non_finite() == v1::Training::ROLL_BACK) {
    return NotBuilt("spec.training.on_non_finite", "ROLL_BACK" + with, "use HALT");
  }
  if (spec.training().has_recompute()) {
    return NotBuilt("spec.training.recompute", "to recompute activations" + with,
                    "leave it out, or use layout.tensor 1");
  }
  return absl::OkStatus();
}

absl::Status CheckTensorParallel(const v1::JobSpec& spec) {
  const int32_t tensor = spec.parallel().tensor();
  if (tensor == 1) return absl::OkStatus();
  const std::string with = absl::StrCat(" with spec.parallel.tensor ", tensor);
  const v1::Model& model = spec.model();
  if (!model.has_gpt() && !model.has_llama() && !model.has_bert() && !model.has_vit()) {
    return NotBuilt("spec.parallel.tensor",
                    absl::StrCat(tensor, " shards of ", FamilyOf(spec.model())),
                    "use 1; gpt, llama, bert and vit can be cut");
  }
  const int64_t layers = model.has_gpt()     ? model.gpt().layers()
                         : model.has_llama() ? model.llama().layers()
                         : model.has_bert()  ? model.bert().layers()
                                             : model.vit().layers();
  if (layers * tensor > kMostLayerShards) {
    return Invalid(
        "spec.parallel.tensor", tensor,
        absl::StrCat(" cuts ", layers, " layers into ", layers * tensor,
                     " shards; expected at most ", kMostLayerShards, ", which is tensor ",
                     std::max<int64_t>(1, kMostLayerShards / layers)));
  }
  if (spec.resources().device() != v1::Resources::CPU) {
    return NotBuilt("spec.resources.device", "a slot that may be a GPU" + with, "use CPU");
  }
  const v1::Parallel::Shard shard = spec.parallel().shard();
  if (shard != v1::Parallel::SHARD_UNSPECIFIED && shard != v1::Parallel::NONE) {
    return NotBuilt("spec.parallel.shard", v1::Parallel::Shard_Name(shard) + with, "use NONE");
  }
  if (spec.optimizer().has_lamb() || spec.optimizer().has_muon()) {
    return NotBuilt("spec.optimizer",
                    absl::StrCat(spec.optimizer().has_lamb() ? "lamb" : "muon", with),
                    "use adamw or sgd");
  }
  if (spec.parallel().layout().tensor() > 1) TY_RETURN_IF_ERROR(CheckSharedShards(spec));
  if (spec.fine_tune().has_lora()) {
    return NotBuilt("spec.fine_tune.lora", "low-rank adaptation" + with, "use 1");
  }
  if (!spec.fine_tune().from().empty()) {
    return NotBuilt("spec.fine_tune.from", "a start from other weights" + with, "use 1");
  }
  return absl::OkStatus();
}

// A GPU records what it computes in each round of logical ranks.
constexpr int64_t kMostRecordedRounds = 64;

absl::Status CheckRounds(const v1::JobSpec& spec) {
  const v1::Resources& resources = spec.resources();
  if (resources.device() == v1::Resources::CPU || resources.max_slots() < 2) {
    return absl::OkStatus();
  }
  const int64_t logical_ranks = spec.parallel().logical_ranks();
  const int64_t slots = std::max(2, resources.min_slots());  // of one nothing is sharded
  const int64_t rounds = (logical_ranks + slots - 1) / slots;
  if (rounds <= kMostRecordedRounds) return absl::OkStatus();
  const int64_t enough = (logical_ranks + kMostRecordedRounds - 1) / kMostRecordedRounds;
  const std::string more =
      enough > resources.max_slots()
          ? "use"
          : absl::StrCat("set spec.resources.min_slots to ", enough, ", or use");
  return Invalid(
      "spec.parallel.shard", v1::Parallel::Shard_Name(spec.parallel().shard()),
      absl::StrCat(" lets ", slots, " GPUs take ", logical_ranks, " logical ranks in turn, in ",
                   rounds, " rounds; expected at most ", kMostRecordedRounds, ": ", more,
                   " fewer logical ranks, device CPU, or shard OPTIMIZER"));
}

// What is not built of gradients that are sharded, or cannot be.
absl::Status CheckShardedGradients(const v1::JobSpec& spec) {
  const std::string at = "spec.parallel.shard";
  const std::string what = v1::Parallel::Shard_Name(spec.parallel().shard());
  if (spec.optimizer().has_muon()) return NotBuilt(at, what + " with Muon", "use NONE");
  const int64_t share = spec.training().batch_size() / spec.parallel().logical_ranks();
  const int64_t micro_batch = spec.training().micro_batch_size();
  if (share == micro_batch) return CheckRounds(spec);
  const int64_t wanted = spec.training().batch_size() / micro_batch;
  const std::string more = wanted > kMostLogicalRanks
                               ? ""
                               : absl::StrCat("spec.parallel.logical_ranks to ", wanted, ", or ");
  return Invalid(
      at, what,
      absl::StrCat(" hands out what a logical rank has made of its only micro-batch, and here each "
                   "has ",
                   share / micro_batch, ": set ", more, "spec.training.micro_batch_size to ", share,
                   ", or shard OPTIMIZER"));
}

// What is not built of parameters that are sharded.
absl::Status CheckShardedParameters(const v1::JobSpec& spec) {
  const std::string with = " with spec.parallel.shard PARAMETERS";
  if (spec.resources().device() != v1::Resources::CPU) {
    return NotBuilt("spec.resources.device", "a slot that may be a GPU" + with,
                    "use CPU, or shard GRADIENTS");
  }
  if (spec.training().has_ema_decay()) {
    return NotBuilt("spec.training.ema_decay", "averages of parameters" + with,
                    "leave it out, or use shard GRADIENTS");
  }
  if (spec.fine_tune().has_lora()) {
    return NotBuilt("spec.fine_tune.lora", "low-rank adaptation" + with, "use shard GRADIENTS");
  }
  return CheckShardedGradients(spec);
}

// The default is not written down: workers of an older version know no such field.
absl::Status CheckShard(const v1::JobSpec& spec) {
  const std::string at = "spec.parallel.shard";
  switch (spec.parallel().shard()) {
    case v1::Parallel::SHARD_UNSPECIFIED:
    case v1::Parallel::NONE:
      return absl::OkStatus();
    case v1::Parallel::OPTIMIZER:
      // The plan would have to count what the rank with the largest matrix needs to step it.
      if (spec.optimizer().has_muon()) return NotBuilt(at, "OPTIMIZER with Muon", "use NONE");
      return absl::OkStatus();
    case v1::Parallel::GRADIENTS:
      return CheckShardedGradients(spec);
    case v1::Parallel::PARAMETERS:
      return CheckShardedParameters(spec);
    default:
      return Invalid(
          at, static_cast<int>(spec.parallel().shard()),
          " is nothing to share out; use NONE, OPTIMIZER, GRADIENTS or PARAMETERS, or leave it "
          "out");
  }
}

absl::Status ResolveEvaluation(v1::Evaluation& evaluation, bool held_out, int64_t micro_batch) {
  const std::string at = "spec.evaluation.";
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "every_steps", evaluation.every_steps(), 0));
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "max_samples", evaluation.max_samples(), 0));
  if (!evaluation.has_at_end()) evaluation.set_at_end(held_out);
  if (!held_out && (evaluation.every_steps() > 0 || evaluation.at_end())) {
    return Invalid(at + (evaluation.at_end() ? "at_end" : "every_steps"),
                   "the data has no held-out split to evaluate on; set one in spec.data");
  }
  if (!evaluation.has_batch_size()) evaluation.set_batch_size(static_cast<int32_t>(micro_batch));
  return CheckRange(at + "batch_size", evaluation.batch_size(), 1, int64_t{1} << 24);
}

absl::Status ResolveCheckpoint(v1::CheckpointPolicy& checkpoint) {
  const std::string at = "spec.checkpoint.";
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "every_steps", checkpoint.every_steps(), 0));
  if (!checkpoint.has_keep()) checkpoint.set_keep(2);
  TY_RETURN_IF_ERROR(CheckRange(at + "keep", checkpoint.keep(), 2, 1000000));
  return absl::OkStatus();
}

absl::Status ResolveRetry(v1::RetryPolicy& retry) {
  const std::string at = "spec.retry.";
  if (!retry.has_max_restarts()) retry.set_max_restarts(5);
  if (!retry.has_backoff_seconds()) retry.set_backoff_seconds(1);
  TY_RETURN_IF_ERROR(CheckRange(at + "max_restarts", retry.max_restarts(), 0, 1000));
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "backoff_seconds", retry.backoff_seconds()));
  if (retry.backoff_seconds() > 300) {
    return Invalid(at + "backoff_seconds", retry.backoff_seconds(), " is more than 300");
  }
  return absl::OkStatus();
}

}  // namespace trainyard::plan
