#pragma once

// The held-out split.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/data/auc.h"
#include "executor/data/dataset.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// Runs the plan's forward pass over validation samples. Its kernels are prepared with the first
// run, so that they do not delay the first training step.
class Evaluator {
 public:
  // `session` and `dataset` must outlive it. `threads` prepare samples while a batch is evaluated.
  Evaluator(Session& session, const data::Dataset& dataset, int64_t threads = 1)
      : session_(session), dataset_(dataset), threads_(threads) {}

  // "loss" and "accuracy" over the first `max_samples` validation samples (0: all), and
  // "perplexity" for language models, "bits_per_byte" for those of text; for clicks "auc" and,
  // where it is known, "best_auc" (auc.h). Sums are doubles in order of the samples, so that the
  // batch size does not change them. kFailedPrecondition: there is no held-out split, or
  // (blamed on kData) none of its samples counts.
  absl::StatusOr<std::map<std::string, double>> Run(int64_t max_samples);

 private:
  absl::Status PrepareOnce();

  Session& session_;
  const data::Dataset& dataset_;
  const int64_t threads_;
  kernels::Kernels begin_;
  Program program_;
  std::vector<float> losses_, correct_;
  std::vector<float> logits_;         // of one batch; clicks only, as is
  std::vector<data::Scored> scored_;  // the whole split
};

}  // namespace trainyard::engine
