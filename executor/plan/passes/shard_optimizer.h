#pragma once

// What each rank of a job adds up of the gradient and steps of the parameters (graph/shares.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/optimizer_step.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// A tensor that a checkpoint stores of a parameter, and where it lies among the dense gradients. A
// shard, which no checkpoint stores by itself, is one too, under its own name.
struct PlacedTensor {
  size_t position = 0;  // of the parameter
  StoredTensor stored;
  ElementRange elements;  // with what pads it
};

// Of the first `dense` parameters, in order.
std::vector<PlacedTensor> PlacedTensors(const Plan& plan, size_t dense);

// Adds to `plan` an alias of `n` elements of `of` from `first` on, counted in elements of its type.
TensorId AddAlias(const std::string& what, TensorId of, int64_t first, int64_t n, Plan& plan);

// Whether each of several ranks is to have a share of the optimizer's state.
bool ShardsOptimizer(const v1::JobSpec& spec, int64_t ranks);

// Cuts the gradients among `ranks` ranks, more than one, and gives rank `rank` the optimizer's
// state of its share if ShardsOptimizer, and the sums of its share if ShardsGradients.
void ShareOut(const v1::JobSpec& spec, const TrainedParameters& parameters, int64_t ranks,
              int64_t rank, Plan& plan);

}  // namespace trainyard::plan
