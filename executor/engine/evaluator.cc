#include "executor/engine/evaluator.h"

#include <algorithm>
#include <cmath>

#include "absl/cleanup/cleanup.h"
#include "executor/data/loader.h"
#include "executor/data/tokenizer.h"
#include "executor/engine/blame.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kPrefetch = 2;  // batches

}  // namespace

absl::Status Evaluator::PrepareOnce() {
  if (!program_.empty()) return absl::OkStatus();
  const plan::Plan& plan = session_.plan();
  const int64_t batch = plan.evaluation_batch;
  TY_ASSIGN_OR_RETURN(begin_, session_.Prepare(plan.evaluate_begin));
  TY_ASSIGN_OR_RETURN(kernels::Kernels program, session_.Prepare(plan.evaluate));
  program_ = Program(std::move(program));
  losses_.resize(batch * plan.rows_per_sample);
  correct_.resize(batch * plan.rows_per_sample);
  if (plan.binary) logits_.resize(batch);
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, double>> Evaluator::Run(int64_t max_samples) {
  int64_t samples = dataset_.size(data::Split::kValidation);
  if (max_samples > 0) samples = std::min(samples, max_samples);
  if (samples == 0) return absl::FailedPreconditionError("the data has no held-out split");
  TY_RETURN_IF_ERROR(PrepareOnce());
  const plan::Plan& plan = session_.plan();

  // A masked model is asked for some tokens alone: their bytes are no text.
  const bool text = dataset_.facts().kind == plan::DataFacts::Kind::kTokens;
  const data::Tokenizer* const tokenizer = text ? dataset_.tokenizer() : nullptr;
  double loss = 0, correct = 0;
  size_t text_bytes = 0;
  scored_.clear();
  int64_t rows = 0;
  data::Loader loader(dataset_,
                      {.batch_size = plan.evaluation_batch,
                       .samples = plan.evaluation_batch,
                       .micro_batch = plan.evaluation_batch,
                       .prefetch = kPrefetch,
                       .threads = threads_,
                       .held_out = samples,
                       .allocate = [this](size_t bytes) { return session_.AllocateHost(bytes); }});
  const absl::Cleanup drain = [&] { session_.Synchronize().IgnoreError(); };  // before it goes
  session_.Launch(begin_);
  for (int64_t first = 0; first < samples; first += plan.evaluation_batch) {
    const absl::StatusOr<data::Loader::Batch> batch = loader.Next();
    if (!batch.ok()) return BlameData(batch.status());
    const auto* targets = static_cast<const int32_t*>(batch->targets);
    session_.WriteInputs(plan.eval_input, plan.eval_ids, batch->inputs);
    session_.Write(plan.eval_target, targets, plan.tensors[plan.eval_target].bytes());
    TY_RETURN_IF_ERROR(session_.Run(program_));
    session_.Read(plan.eval_losses, losses_.data(), losses_.size() * sizeof(float));
    session_.Read(plan.eval_correct, correct_.data(), correct_.size() * sizeof(float));
    if (plan.binary)
      session_.Read(plan.eval_logits, logits_.data(), logits_.size() * sizeof(float));
    TY_RETURN_IF_ERROR(session_.Synchronize());
    for (size_t row = 0; row < losses_.size(); ++row) {
      if (targets[row] < 0) continue;
      loss += losses_[row];
      correct += correct_[row];
      if (tokenizer != nullptr) text_bytes += tokenizer->BytesOf(targets[row]).size();
      if (plan.binary) scored_.push_back({.score = logits_[row], .click = targets[row] == 1});
      ++rows;
    }
  }
  if (rows == 0) {
    return Blame(Fault::kData,
                 absl::FailedPreconditionError(absl::StrCat(
                     "spec.evaluation.max_samples: found no row that counts in the ", samples,
                     " held-out samples that it leaves, of ",
                     dataset_.size(data::Split::kValidation), ": they are too short to be masked, ",
                     "or none of their images can be read; use more, or other held-out data")));
  }
  const double mean = loss / static_cast<double>(rows);
  std::map<std::string, double> values = {{"loss", mean},
                                          {"accuracy", correct / static_cast<double>(rows)}};
  if (plan.tokens) values["perplexity"] = std::exp(mean);
  if (text_bytes > 0)
    values["bits_per_byte"] = loss / std::log(2.0) / static_cast<double>(text_bytes);
  if (plan.binary) {
    if (const auto auc = data::Auc(scored_)) values["auc"] = *auc;
    if (const auto best = dataset_.BestAuc(samples)) values["best_auc"] = *best;
  }
  return values;
}

}  // namespace trainyard::engine
