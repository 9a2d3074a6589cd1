#include "executor/plan/fit.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/plan/assembly.h"
#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/mesh.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

const char* const kRecomputeField = "spec.training.recompute.";
constexpr int64_t kLeast = 1;  // a budget of activations that nothing can hold

v1::JobSpec Keeping(v1::JobSpec spec) {
  spec.mutable_training()->clear_recompute();
  return spec;
}

// Why activations take more than they may, though as much as possible is recomputed.
absl::Status CannotHold(const std::string& budget, const v1::JobSpec& spec, const Plan& least) {
  const ShardHost& host = least.host;
  const std::string in_flight =
      host.stages == 1
          ? ""
          : absl::StrCat(", ", least.in_flight.flights, " of them in flight",
                         host.chunks == 1 ? "" : " (counted once for each of their chunks)",
                         " in stage ", host.stage() + 1, " of ", host.stages);
  return absl::InvalidArgumentError(
      absl::StrCat(kRecomputeField, budget, " cannot be held: activations take at least ",
                   least.summary.activation_bytes(), " bytes with a micro_batch_size of ",
                   spec.training().micro_batch_size(), in_flight,
                   " and an evaluation.batch_size of ", spec.evaluation().batch_size()));
}

absl::StatusOr<Plan> WithinActivationBytes(const v1::JobSpec& spec, const DataFacts& facts,
                                           int64_t rank, int64_t bytes, const std::string& budget) {
  TY_ASSIGN_OR_RETURN(Plan plan, Assemble(spec, facts, bytes, rank));
  if (plan.summary.activation_bytes() > bytes) return CannotHold(budget, spec, plan);
  return plan;
}

bool Fits(const absl::StatusOr<Plan>& plan, int64_t slot_bytes) {
  return plan.ok() && plan->summary.bytes_per_slot() <= slot_bytes;
}

// Recomputes as little as will do, to about a hundredth of the activations.
absl::StatusOr<Plan> WithinSlotBytes(const v1::JobSpec& spec, const DataFacts& facts, int64_t rank,
                                     int64_t slot_bytes) {
  TY_ASSIGN_OR_RETURN(Plan all_kept, Assemble(Keeping(spec), facts, kUnbounded, rank));
  if (Fits(all_kept, slot_bytes)) return all_kept;
  TY_ASSIGN_OR_RETURN(Plan found, Assemble(spec, facts, kLeast, rank));
  if (!Fits(found, slot_bytes)) {
    return Invalid(absl::StrCat(kRecomputeField, "slot_bytes"), slot_bytes,
                   " cannot be held: a slot needs ", all_kept.summary.bytes_per_slot(),
                   " bytes, and ", found.summary.bytes_per_slot(),
                   " when activations are recomputed; ", WhatFits(spec, facts, slot_bytes));
  }
  int64_t low = found.summary.activation_bytes(), high = all_kept.summary.activation_bytes();
  const int64_t precision = high / 128;
  while (high - low > precision) {
    const int64_t middle = low + (high - low) / 2;
    TY_ASSIGN_OR_RETURN(Plan plan, Assemble(spec, facts, middle, rank));
    if (Fits(plan, slot_bytes)) {
      low = middle, found = std::move(plan);
    } else {
      high = middle;
    }
  }
  return found;
}

// The sizes of micro-batch below the one that is set, the largest first.
std::vector<int64_t> SmallerMicroBatches(const v1::JobSpec& spec) {
  const int64_t share = spec.training().batch_size() / spec.parallel().logical_ranks();
  std::vector<int64_t> sizes;
  if (HasOneMicroBatch(spec)) return sizes;
  for (int64_t size = spec.training().micro_batch_size() - 1; size > 0; --size) {
    if (share % size == 0) sizes.push_back(size);
  }
  return sizes;
}

v1::JobSpec WithMicroBatch(v1::JobSpec spec, int64_t size) {
  v1::Training& training = *spec.mutable_training();
  // Evaluation in batches of the same size is the default.
  if (spec.evaluation().batch_size() == training.micro_batch_size()) {
    spec.mutable_evaluation()->set_batch_size(static_cast<int32_t>(size));
  }
  training.set_micro_batch_size(static_cast<int32_t>(size));
  return spec;
}

// The first of `sizes`, which fall, that fits; 0: none does. `build` makes the plan of a spec.
template <typename F>
int64_t LargestThatFits(const v1::JobSpec& spec, const std::vector<int64_t>& sizes,
                        int64_t slot_bytes, const F& build) {
  const auto fits = [&](int64_t size) {
    return Fits(build(WithMicroBatch(spec, size)), slot_bytes);
  };
  const auto found =
      std::partition_point(sizes.begin(), sizes.end(), [&](int64_t size) { return !fits(size); });
  return found == sizes.end() ? 0 : *found;
}

}  // namespace

namespace {

// The stages behind the first of `stages` that are worth planning. Of those between the first and
// the last that have parameters of the same shapes, the earliest has most micro-batches in flight
// and is like the others in all else.
std::vector<int64_t> StagesUnlikeEarlier(const Plan& first, int64_t stages) {
  const Pipeline pipeline = first.host.pipeline();
  // Of its parameters: whether trained, in which chunk, dims.
  std::vector<std::vector<int64_t>> shapes(stages);
  for (size_t i = 0; i < first.of_group.size(); ++i) {
    const Tensor& parameter = first.tensors[first.of_group[i]];
    std::vector<int64_t>& shape = shapes[pipeline.stage_of(parameter.piece)];
    shape.push_back(i < first.trained_of_group ? -1 : -2);
    shape.push_back(pipeline.chunk_of(parameter.piece));
    shape.insert(shape.end(), parameter.dims.begin(), parameter.dims.end());
  }
  std::vector<int64_t> unlike;
  std::set<std::vector<int64_t>> seen;
  for (int64_t stage = 1; stage < stages; ++stage) {
    if (stage == stages - 1 || seen.insert(shapes[stage]).second) unlike.push_back(stage);
  }
  return unlike;
}

// Of the ranks behind the first that share the shards of a stage, one for each list of shapes that
// their parameters have in all stages.
std::vector<int64_t> PlacesUnlikeEarlier(const Plan& first, int64_t places) {
  std::vector<std::vector<int64_t>> shapes(places);
  for (const TensorId id : first.of_group) {
    const Tensor& parameter = first.tensors[id];
    std::vector<int64_t>& shape = shapes[first.host.HostOf(parameter) % places];
    shape.push_back(-1);
    shape.insert(shape.end(), parameter.dims.begin(), parameter.dims.end());
  }
  std::vector<int64_t> unlike;
  std::set<std::vector<int64_t>> seen = {shapes[0]};
  for (int64_t place = 1; place < places; ++place) {
    if (seen.insert(shapes[place]).second) unlike.push_back(place);
  }
  return unlike;
}

// The ranks of a group behind the first whose plans may differ from those of earlier ones in what
// they take: one of each stage or, with `by_place`, several of its ranks.
std::vector<int64_t> RanksUnlikeEarlier(const Plan& first, const Mesh& mesh, bool by_place) {
  std::vector<int64_t> stages = StagesUnlikeEarlier(first, mesh.pipeline), places;
  stages.insert(stages.begin(), 0);
  if (by_place) places = PlacesUnlikeEarlier(first, mesh.tensor);
  places.insert(places.begin(), 0);
  std::vector<int64_t> ranks;
  for (const int64_t stage : stages) {
    for (const int64_t place : places) ranks.push_back(stage * mesh.tensor + place);
  }
  ranks.erase(ranks.begin());
  return ranks;
}

}  // namespace

absl::StatusOr<Plan> LargestOfStages(const Mesh& mesh, bool recomputing,
                                     absl::FunctionRef<absl::StatusOr<Plan>(int64_t rank)> build) {
  TY_ASSIGN_OR_RETURN(Plan largest, build(0));
  int64_t sent = largest.summary.sent_bytes_per_step();
  // Each rank of a stage recomputes by what it hosts.
  for (const int64_t rank : RanksUnlikeEarlier(largest, mesh, /*by_place=*/recomputing)) {
    TY_ASSIGN_OR_RETURN(Plan plan, build(rank));
    sent = std::max(sent, plan.summary.sent_bytes_per_step());
    if (plan.summary.bytes_per_slot() > largest.summary.bytes_per_slot()) largest = std::move(plan);
  }
  largest.summary.set_sent_bytes_per_step(sent);
  return largest;
}

namespace {

// The most that the activations of a rank take when all are kept. Of ranks that share the shards of
// a stage, the first has as many as any other.
absl::StatusOr<int64_t> MostActivationBytes(const v1::JobSpec& spec, const DataFacts& facts) {
  const v1::JobSpec kept = Keeping(spec);
  TY_ASSIGN_OR_RETURN(const Plan first, Assemble(kept, facts, kUnbounded));
  int64_t most = first.summary.activation_bytes();
  for (const int64_t rank : RanksUnlikeEarlier(first, MeshOf(spec), /*by_place=*/false)) {
    TY_ASSIGN_OR_RETURN(const Plan plan, Assemble(kept, facts, kUnbounded, rank));
    most = std::max(most, plan.summary.activation_bytes());
  }
  return most;
}

}  // namespace

absl::StatusOr<Plan> FitToBudget(const v1::JobSpec& spec, const DataFacts& facts, int64_t rank) {
  const v1::Recompute& recompute = spec.training().recompute();
  if (recompute.has_slot_bytes()) return WithinSlotBytes(spec, facts, rank, recompute.slot_bytes());
  if (recompute.has_activation_bytes()) {
    const int64_t bytes = recompute.activation_bytes();
    return WithinActivationBytes(spec, facts, rank, bytes,
                                 absl::StrCat("activation_bytes: ", bytes));
  }
  // All take what the one may take that has most.
  TY_ASSIGN_OR_RETURN(const int64_t all, MostActivationBytes(spec, facts));
  const double share = recompute.activation_share();
  return WithinActivationBytes(spec, facts, rank,
                               static_cast<int64_t>(share * static_cast<double>(all)),
                               absl::StrCat("activation_share: ", share, " of ", all, " bytes"));
}

std::string WhatFits(const v1::JobSpec& spec, const DataFacts& facts, int64_t slot_bytes) {
  const v1::JobSpec kept = Keeping(spec);
  const auto within = [&](const v1::JobSpec& s, int64_t activation_bytes) {
    return LargestOfStages(
        MeshOf(s), /*recomputing=*/activation_bytes < kUnbounded,
        [&](int64_t rank) { return Assemble(s, facts, activation_bytes, rank); });
  };
  const auto keep = [&](const v1::JobSpec& s) { return within(s, kUnbounded); };
  const auto recompute = [&](const v1::JobSpec& s) { return within(s, kLeast); };
  const std::string ask = absl::StrCat("training.recompute.slot_bytes to ", slot_bytes);
  const std::vector<int64_t> sizes = SmallerMicroBatches(spec);
  const int64_t smaller = LargestThatFits(kept, sizes, slot_bytes, keep);
  if (Fits(recompute(kept), slot_bytes)) {
    return absl::StrCat(
        "set ", ask,
        smaller == 0 ? "" : absl::StrCat(", or training.micro_batch_size to ", smaller));
  }
  const int64_t both = LargestThatFits(kept, sizes, slot_bytes, recompute);
  if (both == 0) {
    return absl::StrCat(
        "no size of micro-batch would fit, even if activations are recomputed; a smaller model",
        RanksInGroup(spec.parallel()) == 1
            ? ""
            : ", or more ranks that share its shards or layers (parallel.layout),",
        " may");
  }
  const std::string recomputing = absl::StrCat("training.micro_batch_size to ", both, " and ", ask);
  if (smaller == 0) return absl::StrCat("set ", recomputing);
  if (smaller == both) return absl::StrCat("set training.micro_batch_size to ", smaller);
  return absl::StrCat("set training.micro_batch_size to ", smaller, ", or ", recomputing);
}

}  // namespace trainyard::plan
