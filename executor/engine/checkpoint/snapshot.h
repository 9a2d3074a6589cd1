#pragma once

// A host copy of the training state: what a checkpoint is written from while training goes on.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor/plan/plan.h"

namespace trainyard::engine {

// Where a tensor lies in memory that someone else owns.
struct TensorView {
  std::vector<int64_t> dims;
  const float* data = nullptr;
  int64_t elements = 0;
};

// "exp_avg.": before the name of a parameter, that of its optimizer state in a checkpoint.
std::string OptimizerPrefix(const plan::Plan& plan, size_t kind);

// Owns one buffer of the plan's parameter and optimizer bytes, allocated once; the kernel hands out
// its pages with the first copy.
class Snapshot {
 public:
  explicit Snapshot(const plan::Plan& plan);

  // The host places that the two regions of the arena are copied to.
  char* parameters() { return memory_.get(); }
  char* optimizer() { return memory_.get() + parameter_bytes_; }

  const std::map<std::string, TensorView>& model() const { return model_; }
  const std::map<std::string, TensorView>& optimizer_state() const { return optimizer_state_; }

 private:
  int64_t parameter_bytes_ = 0;
  std::unique_ptr<char[]> memory_;
  std::map<std::string, TensorView> model_, optimizer_state_;
};

// Digest over the model's tensors in order of their names: name, shape and bytes of each.
std::string WeightsDigest(const std::map<std::string, TensorView>& model);

}  // namespace trainyard::engine
