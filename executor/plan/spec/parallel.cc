// How the ranks of a job share it out: the mesh, its layout, and what each keeps.

#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// The next multiple of `sharing` that the job may have instead of `slots`: the one above, else, of
// few logical ranks or very many slots, the one below; 0: neither.
int64_t SlotsThatGroup(const v1::Parallel& parallel, int64_t slots, int64_t sharing) {
  const int64_t below = slots / sharing * sharing, above = below + sharing;
  const bool said = parallel.has_logical_ranks();
  if (above <= kMostSlots && (!said || parallel.logical_ranks() >= above / sharing)) return above;
  return said && parallel.logical_ranks() < below / sharing ? 0 : below;
}

}  // namespace

absl::Status CheckLayout(const v1::Parallel& parallel) {
  const v1::Layout& layout = parallel.layout();
  const std::string at = "spec.parallel.layout.";
  if (layout.has_tensor() && (layout.tensor() < 1 || layout.tensor() > parallel.tensor())) {
    return Invalid(at + "tensor", layout.tensor(), " is not in [1, ", parallel.tensor(),
                   "]: so many ranks share the shards of a logical rank, of which there are "
                   "spec.parallel.tensor");
  }
  if (layout.has_pipeline() && (layout.pipeline() < 1 || layout.pipeline() > parallel.pipeline())) {
    return Invalid(at + "pipeline", layout.pipeline(), " is not in [1, ", parallel.pipeline(),
                   "]: in so many stages the layers are cut, and spec.parallel.pipeline says how "
                   "many there may be");
  }
  if (layout.has_chunks() && (layout.chunks() < 1 || layout.chunks() > 128)) {
    return Invalid(at + "chunks", layout.chunks(), " is not in [1, 128]");
  }
  if (layout.chunks() > 1 && layout.pipeline() <= 1) {
    return Invalid(at + "chunks", layout.chunks(),
                   absl::StrCat(" chunks of a stage, but there is one stage; set ", at,
                                "pipeline and spec.parallel.pipeline, or leave chunks out"));
  }
  if (layout.sequence() && layout.tensor() <= 1) {
    return Invalid(at + "sequence", "true, but ", at,
                   "tensor is 1: tokens are shared out among ranks that share shards; set that and "
                   "spec.parallel.tensor to their number, or leave sequence out");
  }
  if (layout.sequence() && layout.tensor() != parallel.tensor()) {
    return NotBuilt(
        at + "sequence",
        absl::StrCat("sharing out tokens among ", layout.tensor(), " ranks that host ",
                     parallel.tensor(), " shards"),
        absl::StrCat("set ", at, "tensor to ", parallel.tensor(), ", or leave sequence out"));
  }
  return absl::OkStatus();
}

namespace {

// How many groups of ranks, which share a logical rank, `slots` slots are.
absl::StatusOr<int64_t> GroupsOf(const v1::Parallel& parallel, int64_t slots) {
  TY_RETURN_IF_ERROR(CheckLayout(parallel));
  const int64_t sharing = RanksInGroup(parallel);
  if (slots % sharing != 0) {
    const int64_t instead = SlotsThatGroup(parallel, slots, sharing);
    const bool staged = parallel.layout().pipeline() > 1;
    return Invalid(
        staged ? "spec.parallel.layout" : "spec.parallel.layout.tensor", sharing,
        staged ? " ranks, tensor times pipeline, do not divide the " : " does not divide the ",
        slots, " slots of spec.resources; ",
        instead > 0 ? absl::StrCat("use ", instead, " slots, or ") : "", "let fewer ranks share");
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
  TY_RETURN_IF_ERROR(CheckRange(at + "pipeline", parallel.pipeline(), 1, 128));
  TY_ASSIGN_OR_RETURN(const int64_t groups, GroupsOf(parallel, slots));
  // The default is not written down: workers of an older version know no such field.
  if (parallel.layout().tensor() <= 1) parallel.mutable_layout()->clear_tensor();
  if (parallel.layout().pipeline() <= 1) parallel.mutable_layout()->clear_pipeline();
  if (parallel.layout().chunks() <= 1) parallel.mutable_layout()->clear_chunks();
  if (RanksInGroup(parallel) == 1) parallel.clear_layout();
  // The default does not go by the layout, which changes no bit.
  if (!parallel.has_logical_ranks()) parallel.set_logical_ranks(static_cast<int32_t>(slots));
  TY_RETURN_IF_ERROR(
      CheckRange(at + "logical_ranks", parallel.logical_ranks(), 1, kMostLogicalRanks));
  if (parallel.logical_ranks() < groups) {
    return Invalid(at + "logical_ranks", parallel.logical_ranks(), " cannot be shared by ", slots,
                   " slots: ", groups == slots ? "each takes" : "each group of them takes",
                   " at least one; use ", groups, " or more, or fewer slots");
  }
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "sequence", parallel.sequence(), 1));
  if (parallel.sequence() > 1) {
    return NotBuilt(
        at + "sequence",
        absl::StrCat(parallel.sequence(), " ranks that share out tokens, but no shards,"),
        "use 1, or spec.parallel.layout.sequence, with which ranks that share shards "
        "share out tokens, too");
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

namespace {

// Planning takes time by the square of them.
constexpr int64_t kMostLayerShards = 2048;

// Where several ranks share a logical rank: how many slots it may have.
absl::Status CheckSharedRanks(const v1::JobSpec& spec) {
  const int64_t sharing = RanksInGroup(spec.parallel()), least = spec.resources().min_slots();
  if (least % sharing != 0) {  // a step below max_slots, which is a multiple
    return Invalid("spec.resources.min_slots", least, " is not a multiple of the ", sharing,
                   " ranks that share a logical rank (spec.parallel.layout); use ",
                   (least / sharing + 1) * sharing);
  }
  return absl::OkStatus();
}

// What is not built yet of jobs that may be cut across ranks, by the field `axis` of spec.parallel.
absl::Status CheckCut(const v1::JobSpec& spec, const std::string& axis, int32_t size) {
  const std::string with = absl::StrCat(" with spec.parallel.", axis, " ", size);
  const v1::Parallel::Shard shard = spec.parallel().shard();
  if (shard == v1::Parallel::GRADIENTS || shard == v1::Parallel::PARAMETERS) {
    return NotBuilt("spec.parallel.shard", v1::Parallel::Shard_Name(shard) + with,
                    "use NONE or OPTIMIZER");
  }
  if (spec.fine_tune().has_lora()) {
    return NotBuilt("spec.fine_tune.lora", "low-rank adaptation" + with, "use 1");
  }
  return absl::OkStatus();
}

absl::Status CheckTensorParallel(const v1::JobSpec& spec) {
  const int32_t tensor = spec.parallel().tensor();
  if (tensor == 1) return absl::OkStatus();
  const v1::Model& model = spec.model();
  if (!model.has_gpt() && !model.has_llama() && !model.has_bert() && !model.has_vit()) {
    return NotBuilt("spec.parallel.tensor",
                    absl::StrCat(tensor, " shards of ", FamilyOf(spec.model())),
                    "use 1; gpt, llama, bert and vit can be cut");
  }
  const int64_t layers = LayersOf(model);
  if (layers * tensor > kMostLayerShards) {
    return Invalid(
        "spec.parallel.tensor", tensor,
        absl::StrCat(" cuts ", layers, " layers into ", layers * tensor,
                     " shards; expected at most ", kMostLayerShards, ", which is tensor ",
                     std::max<int64_t>(1, kMostLayerShards / layers)));
  }
  // They step whole matrices.
  if (spec.optimizer().has_lamb() || spec.optimizer().has_muon()) {
    return NotBuilt("spec.optimizer",
                    absl::StrCat(spec.optimizer().has_lamb() ? "lamb" : "muon",
                                 " with spec.parallel.tensor ", tensor),
                    "use adamw or sgd");
  }
  return CheckCut(spec, "tensor", tensor);
}

// Of all stages over all micro-batches of a step, of which every rank makes a timetable.
constexpr int64_t kMostPasses = int64_t{1} << 18;

// What of the layout may depend on the model and the step.
absl::Status CheckChunks(const v1::JobSpec& spec) {
  const v1::Layout& layout = spec.parallel().layout();
  const std::string at = "spec.parallel.layout.";
  const int64_t chunks = std::max(1, layout.chunks()), pieces = chunks * layout.pipeline();
  const int64_t micro_batches =
      std::max(1, spec.training().batch_size() / std::max(1, spec.training().micro_batch_size()));
  if (const int64_t most = std::max<int64_t>(1, kMostPasses / micro_batches); pieces > most) {
    return Invalid(
        at + "pipeline", layout.pipeline(),
        absl::StrCat(" stages", chunks > 1 ? absl::StrCat(" of ", chunks, " chunks") : "",
                     " of a step of ", micro_batches,
                     " micro-batches are too many to put in order; expected at most ", most,
                     chunks > 1 ? " of stages times chunks" : "", ", or larger micro-batches"));
  }
  if (chunks == 1) return absl::OkStatus();
  if (const int64_t layers = LayersOf(spec.model()); pieces > layers) {
    return Invalid(
        at + "chunks", chunks,
        absl::StrCat(" chunks of ", layout.pipeline(), " stages are more than the ", layers,
                     " layers of the model; use at most ", layers / layout.pipeline()));
  }
  return absl::OkStatus();
}

absl::Status CheckPipeline(const v1::JobSpec& spec) {
  const std::string at = "spec.parallel.pipeline";
  const int32_t stages = spec.parallel().pipeline();
  if (stages == 1) return absl::OkStatus();
  const v1::Model& model = spec.model();
  if (!model.has_gpt() && !model.has_llama() && !model.has_bert() && !model.has_vit()) {
    return NotBuilt(at, absl::StrCat(stages, " stages of ", FamilyOf(model)),
                    "use 1; gpt, llama, bert and vit can be cut");
  }
  if (const int64_t layers = LayersOf(model); stages > layers) {
    return Invalid(at, stages, " is more than the ", layers, " layers of the model; use at most ",
                   layers);
  }
  TY_RETURN_IF_ERROR(CheckChunks(spec));
  return CheckCut(spec, "pipeline", stages);
}

}  // namespace

absl::Status CheckMesh(const v1::JobSpec& spec) {
  TY_RETURN_IF_ERROR(CheckTensorParallel(spec));
  TY_RETURN_IF_ERROR(CheckPipeline(spec));
  return RanksInGroup(spec.parallel()) > 1 ? CheckSharedRanks(spec) : absl::OkStatus();
}

namespace {

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

}  // namespace

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

absl::Status CheckSecondOwner(const v1::JobSpec& spec) {
  const v1::Parallel& parallel = spec.parallel();
  if (!parallel.second_owner()) return absl::OkStatus();
  const std::string at = "spec.parallel.second_owner", with = " with " + at;
  if (spec.resources().max_slots() < 2) {
    return Invalid(at,
                   "true, but the job has one slot, and so no second rank; set "
                   "spec.resources.max_slots to 2 or more, or leave it out");
  }
  if (spec.resources().device() != v1::Resources::CPU) {
    return NotBuilt("spec.resources.device", "a slot that may be a GPU" + with,
                    "use CPU, or leave second_owner out");
  }
  if (HasNormOfShards(parallel)) {
    return NotBuilt(at, "true with spec.parallel.tensor or pipeline above 1",
                    "leave it out, or use 1");
  }
  return absl::OkStatus();
}

}  // namespace trainyard::plan
