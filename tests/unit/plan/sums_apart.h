#pragma once

// Takes back what passes/residual_norm.h did.

#include <utility>
#include <variant>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// `ops` with each norm of a sum as the Add and the norm that it was made of. They run in the same
// memory: what the norm writes over, the sum has read.
inline std::vector<Op> SumsApart(const std::vector<Op>& ops) {
  std::vector<Op> apart;
  for (const Op& op : ops) {
    const auto* const joined = std::get_if<LayerNormForward>(&op);
    if (joined == nullptr || joined->residual == kNone) {
      apart.push_back(op);
      continue;
    }
    LayerNormForward norm = *joined;
    apart.push_back(
        Add{.a = norm.x, .b = norm.residual, .y = norm.sum, .n = norm.rows * norm.cols});
    norm.x = norm.sum;
    norm.residual = norm.sum = kNone;
    apart.push_back(norm);
  }
  return apart;
}

inline Plan SumsApart(Plan plan) {
  plan.micro = SumsApart(plan.micro);
  plan.evaluate = SumsApart(plan.evaluate);
  return plan;
}

}  // namespace trainyard::plan
