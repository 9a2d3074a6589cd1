#pragma once

// Text from a trained language model.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

struct SampleOptions {
  int64_t tokens = 500;
  double temperature = 0.8;  // 0: always the likeliest
  int64_t top_k = 0;         // draw among the k likeliest; 0: among all
  double top_p = 1;          // and of these among the likeliest that together have this probability
  uint64_t seed = 1337;
};

// Picks from `logits` (all finite) with `uniform` in [0, 1): what SampleOptions says, in the order
// of its fields, as transformers does (top-p: Holtzman et al. 2020, arXiv:1904.09751); ties by the
// lower id. Pure.
int32_t PickToken(const std::vector<float>& logits, const SampleOptions& options, double uniform);

// Loads the parameters and buffers of a language model; kInvalidArgument for another family.
class Sampler {
 public:
  static absl::StatusOr<std::unique_ptr<Sampler>> Load(kernels::Device& device,
                                                       const Checkpoint& checkpoint);

  // Continues `prompt` (not empty) and calls `token` with each new id. What lies further back than
  // the model's context is forgotten. Ids are kept below `vocabulary` (a padded head can draw
  // more). kFailedPrecondition: logits that are not finite.
  absl::Status Run(const std::vector<int32_t>& prompt, int64_t vocabulary,
                   const SampleOptions& options, const std::function<void(int32_t)>& token);

 private:
  explicit Sampler(plan::Plan plan) : plan_(std::move(plan)) {}
  absl::StatusOr<std::vector<float>> NextLogits(const std::vector<int32_t>& ids);

  const plan::Plan plan_;
  std::unique_ptr<Session> session_;
  Program program_;
};

}  // namespace trainyard::engine
