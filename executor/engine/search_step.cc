// The search of a trainer for what is not finite in a step.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/engine/non_finite.h"
#include "executor/engine/trainer.h"
#include "executor/plan/passes/shard_parameters.h"
#include "storage/base/status.h"

namespace trainyard::engine {

absl::StatusOr<std::string> Trainer::FindNonFinite(const BatchSource& next) {
  TY_CHECK(!busy(), "steps are on their way");
  if (shards_) shards_->BeginStep();
  const absl::StatusOr<std::string> found = Search(next);
  if (shards_) shards_->EndStep();
  TY_RETURN_IF_ERROR(session_.Synchronize());  // the caller may free the data now
  return found;
}

absl::StatusOr<std::string> Trainer::Search(const BatchSource& next) {
  const plan::Plan& plan = session_.plan();
  NonFiniteSearch search(session_);
  const std::string before =
      absl::StrCat("as the update of step ", steps_done_, " left it, parameter");
  size_t gathered = 0;  // parameters that were looked at while their bucket was gathered
  for (size_t bucket = 0; plan.parameters_sharded && bucket < plan.buckets.size(); ++bucket) {
    TY_RETURN_IF_ERROR(across_->GatherBucket(bucket));
    for (const plan::TensorId id : plan::GatheredWith(plan, bucket)) {
      TY_RETURN_IF_ERROR(search.Look(id, before));
      ++gathered;
    }
  }
  for (size_t i = gathered; i < plan.parameters.size(); ++i) {
    if (plan.RowsOf(plan.parameters[i]) == nullptr) {
      TY_RETURN_IF_ERROR(search.Look(plan.parameters[i], before));
      continue;
    }
    // The first table that has such a row is named, whoever has it.
    TY_RETURN_IF_ERROR(search.LookAtRows(plan.parameters[i], before));
    TY_ASSIGN_OR_RETURN(const bool found, groups_.all().Any(!search.found().empty()));
    if (found) search.LeaveToOthers();
  }
  // Each micro-batch writes only its own rows: the others may still hold the value for which the
  // step failed.
  if (plan.row_gradient != plan::kNone) {
    TY_RETURN_IF_ERROR(session_.Zero({.offset = plan.offsets[plan.row_gradient],
                                      .bytes = plan.tensors[plan.row_gradient].bytes()}));
  }
  TY_RETURN_IF_ERROR(search.Run(plan.begin, begin_, "begin of the step"));
  for (int64_t i = 0; i < micro_batches(); ++i) TY_RETURN_IF_ERROR(SearchPart(i, next, search));
  if (shards_) TY_RETURN_IF_ERROR(shards_->status());
  // A value that one rank has found is in the sum of all.
  if (across_ && plan.gradients_sharded) TY_RETURN_IF_ERROR(across_->AddSums());
  TY_ASSIGN_OR_RETURN(const bool found, groups_.all().Any(!search.found().empty()));
  if (!found) {
    if (across_ && !plan.gradients_sharded) TY_RETURN_IF_ERROR(across_->AddSums());
    if (!plan.sums_for_all) {
      session_.Launch(clear_padding_);
      TY_RETURN_IF_ERROR(across_->CompleteLeaves());
      session_.Launch(norm_leaves_);
      TY_RETURN_IF_ERROR(across_->ShareLeaves());
    }
    TY_RETURN_IF_ERROR(GatherRows());
    TY_RETURN_IF_ERROR(search.Run(plan.norm, norm_, "norm of the gradient"));
  }
  ClearRejectedStep();  // the search may have computed the norm, which stops all later steps
  return search.found();
}

absl::Status Trainer::SearchPart(int64_t i, const BatchSource& next, NonFiniteSearch& search) {
  const plan::Plan& plan = session_.plan();
  const StepPart& part = parts_[i];
  const std::string where = absl::StrCat("micro-batch ", micro_batches_[i] + 1, " of ",
                                         plan.logical_ranks * plan.micro_batches);
  const plan::Instance loaded = stage_ ? stage_->PlaceOf(i) : plan::Instance();
  TY_RETURN_IF_ERROR(Load(next, steps_done_, i, loaded));
  TY_RETURN_IF_ERROR(search.Look(plan.input, absl::StrCat("the data of ", where, ":"), loaded));
  if (part.begins_logical_rank) session_.Launch(zero_[part.partial]);
  // Where gradients are handed out at once they are gone once this micro-batch is over.
  kernels::Kernels micro = micro_[part.partial];
  if (plan.gradients_sharded) micro = across_->WithExchanges(micro, part);
  std::vector<plan::Instance> places(plan.micro.size(), {.partial = part.partial});
  if (stage_) {
    micro = stage_->OneByOne(i);
    places = stage_->PlacesOneByOne(i);
  }
  TY_RETURN_IF_ERROR(search.Run(plan.micro, micro, where, places));
  for (size_t k = plan.micro.size(); k < micro.size(); ++k) session_.Launch(micro[k]);
  for (int64_t fold = 0; fold < part.folds; ++fold) {
    const int64_t to = part.partial - 1 - fold;
    TY_RETURN_IF_ERROR(search.Run(plan.folds[to], folds_[to], "sums of logical ranks"));
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
