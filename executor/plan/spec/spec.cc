#include "executor/plan/spec/spec.h"

#include "executor/plan/spec/checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Families learn from one kind of data each.
absl::Status CheckModelFitsData(const v1::Model& model, const v1::Data& data) {
  const bool tokens = data.has_text() || data.has_tokens();
  const bool clicks = data.has_csv() || data.has_criteo() || data.has_clicks();
  if (model.has_dlrm() != clicks) {
    return Invalid("spec.data", clicks ? "csv, criteo and clicks are for dlrm; set spec.model.dlrm"
                                       : "dlrm trains on clicks; set spec.data.csv, "
                                         "spec.data.criteo or spec.data.clicks");
  }
  if (clicks) return absl::OkStatus();
  const bool language = ContextOf(model) > 0;
  const std::string family = FamilyOf(model);
  if (model.has_layers() && language != tokens) {
    return Invalid("spec.model.layers.context", model.layers().context(),
                   tokens ? "; set it to the tokens of a sample" : "; leave it out for images");
  }
  if (language && !tokens) {
    return Invalid("spec.data", family,
                   " trains on text or tokens; set spec.data.text or spec.data.tokens");
  }
  if (!language && tokens) {
    return Invalid("spec.data", family,
                   " trains on images; set spec.data.idx, image_folder or webdataset");
  }
  const bool declared = data.has_text() ? data.text().has_vocab_size() : data.has_tokens();
  const bool chosen =
      model.has_llama() ? model.llama().has_vocab_size() : model.gpt().has_vocab_size();
  if (language && chosen && declared) {
    const int64_t has = model.has_llama() ? model.llama().vocab_size() : model.gpt().vocab_size();
    const int64_t needs = data.has_text() ? data.text().vocab_size() : data.tokens().vocab_size();
    if (has < needs) {
      return Invalid(absl::StrCat("spec.model.", family, ".vocab_size"), has, " is less than the ",
                     needs, " tokens of the data");
    }
  }
  return absl::OkStatus();
}

// Clicks have two classes and one logit: what spreads over classes has no meaning there.
absl::Status CheckLoss(const v1::Model& model, const v1::Training& training) {
  if (!model.has_dlrm()) return absl::OkStatus();
  const char* const why = "has no meaning for dlrm, whose loss is binary; leave it out";
  if (training.label_smoothing() != 0) return Invalid("spec.training.label_smoothing", why);
  if (training.z_loss() != 0) return Invalid("spec.training.z_loss", why);
  return absl::OkStatus();
}

}  // namespace

bool OnGpuAlone(const v1::JobSpec& spec) {
  return spec.resources().device() == v1::Resources::CUDA;
}

absl::StatusOr<v1::JobSpec> ResolveSpec(const v1::JobSpec& spec) {
  v1::JobSpec s = spec;
  TY_RETURN_IF_ERROR(ResolveModel(*s.mutable_model()));
  TY_RETURN_IF_ERROR(ResolveData(*s.mutable_data()));
  TY_RETURN_IF_ERROR(CheckModelFitsData(s.model(), s.data()));
  TY_RETURN_IF_ERROR(ResolveResources(*s.mutable_resources(), s.parallel()));
  TY_RETURN_IF_ERROR(ResolveParallel(*s.mutable_parallel(), s.resources().max_slots()));
  TY_RETURN_IF_ERROR(ResolveTraining(*s.mutable_training(), s.parallel().logical_ranks()));
  TY_RETURN_IF_ERROR(ResolveOptimizer(*s.mutable_optimizer()));
  TY_RETURN_IF_ERROR(CheckShard(s));
  TY_RETURN_IF_ERROR(CheckSecondOwner(s));
  TY_RETURN_IF_ERROR(CheckArithmetic(s.parallel()));
  TY_RETURN_IF_ERROR(ResolveSchedule(*s.mutable_schedule(), s.training().steps()));
  TY_RETURN_IF_ERROR(CheckOptimizerFitsSchedule(s.optimizer(), s.schedule()));
  TY_RETURN_IF_ERROR(ResolvePrecision(*s.mutable_precision()));
  TY_RETURN_IF_ERROR(ResolveEvaluation(*s.mutable_evaluation(), HasHeldOutSplit(s.data()),
                                       s.training().micro_batch_size()));
  TY_RETURN_IF_ERROR(ResolveCheckpoint(*s.mutable_checkpoint()));
  TY_RETURN_IF_ERROR(ResolveRetry(*s.mutable_retry()));
  if (s.has_fine_tune()) TY_RETURN_IF_ERROR(ResolveFineTune(*s.mutable_fine_tune()));
  TY_RETURN_IF_ERROR(ResolveStartTokenizer(s.fine_tune(), *s.mutable_data()));
  TY_RETURN_IF_ERROR(CheckLoss(s.model(), s.training()));
  TY_RETURN_IF_ERROR(CheckMesh(s));
  TY_RETURN_IF_ERROR(ResolveMetrics(s));
  return s;
}

}  // namespace trainyard::plan
