#pragma once

// The parameters of a plan by name.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

inline std::vector<std::string> NamesOf(const Plan& plan) {
  std::vector<std::string> names;
  for (const TensorId id : plan.parameters) names.push_back(plan.tensors[id].name);
  return names;
}

inline std::vector<int64_t> DimsOf(const Plan& plan, const std::string& parameter) {
  for (const TensorId id : plan.parameters) {
    if (plan.tensors[id].name == parameter) return plan.tensors[id].dims;
  }
  return {};
}

inline const Tensor& ParameterOf(const Plan& plan, const std::string& name) {
  for (const TensorId id : plan.parameters) {
    if (plan.tensors[id].name == name) return plan.tensors[id];
  }
  static const Tensor none;
  ADD_FAILURE() << name;
  return none;
}

}  // namespace trainyard::plan
