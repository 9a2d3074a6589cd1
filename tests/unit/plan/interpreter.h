#pragma once

// Runs a plan's ops in double precision with the plain formulas of tests/reference, in an arena
// that is laid out exactly as the plan says: what two tensors wrongly share is wrong here too.

#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"
#include "kernels/step_state.h"
#include "tests/reference/vec.h"

namespace trainyard::plan {

class Interpreter {
 public:
  // Activations hold NaN until they are written; everything else is 0.
  explicit Interpreter(const Plan& plan);

  kernels::StepState state;

  // A tensor, or the run of `n` elements that begins with it.
  reference::Vec Read(TensorId id, int64_t n = -1) const;
  void Write(TensorId id, const reference::Vec& values);

  void Run(const std::vector<Op>& ops);

 private:
  struct Executor;
  int64_t CellOf(TensorId id, int64_t i) const;  // of element i
  std::vector<int32_t> ReadIds(TensorId id) const;

  const Plan& plan_;
  std::vector<double> cells_;  // one per byte: an element's value is in the cell of its first byte
};

}  // namespace trainyard::plan
