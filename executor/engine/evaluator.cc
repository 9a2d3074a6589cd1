#include "executor/engine/evaluator.h"

#include <algorithm>
#include <cmath>

#include "executor/data/tokenizer.h"
#include "executor/engine/blame.h"
#include "storage/base/status.h"

namespace trainyard::engine {

absl::Status Evaluator::PrepareOnce() {
  if (!program_.empty()) return absl::OkStatus();
  const plan::Plan& plan = session_.plan();
  const int64_t batch = plan.evaluation_batch;
  TY_ASSIGN_OR_RETURN(program_, session_.Prepare(plan.evaluate));
  samples_.resize(batch);
  inputs_.resize(batch * dataset_.input_bytes());
  targets_.resize(batch * dataset_.target_bytes() / sizeof(int32_t));
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

  const data::Tokenizer* const tokenizer = dataset_.tokenizer();
  double loss = 0, correct = 0;
  size_t text_bytes = 0;
  scored_.clear();
  int64_t rows = 0;
  for (int64_t first = 0; first < samples; first += plan.evaluation_batch) {
    for (int64_t i = 0; i < plan.evaluation_batch; ++i) {
      samples_[i] = first + i < samples ? first + i : -1;
    }
    const absl::Status filled =
        dataset_.Fill(data::Split::kValidation, samples_, inputs_.data(), targets_.data());
    if (!filled.ok()) return Blame(Fault::kData, filled);
    session_.WriteInputs(plan.eval_input, plan.eval_ids, inputs_.data());
    session_.Write(plan.eval_target, targets_.data(), targets_.size() * sizeof(int32_t));
    session_.Launch(program_);
    session_.Read(plan.eval_losses, losses_.data(), losses_.size() * sizeof(float));
    session_.Read(plan.eval_correct, correct_.data(), correct_.size() * sizeof(float));
    if (plan.binary)
      session_.Read(plan.eval_logits, logits_.data(), logits_.size() * sizeof(float));
    TY_RETURN_IF_ERROR(session_.Synchronize());
    for (size_t row = 0; row < targets_.size(); ++row) {
      if (targets_[row] < 0) continue;
      loss += losses_[row];
      correct += correct_[row];
      if (tokenizer != nullptr) text_bytes += tokenizer->BytesOf(targets_[row]).size();
      if (plan.binary) scored_.push_back({.score = logits_[row], .click = targets_[row] == 1});
      ++rows;
    }
  }
  if (rows == 0) return absl::FailedPreconditionError("the held-out split has no row that counts");
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
