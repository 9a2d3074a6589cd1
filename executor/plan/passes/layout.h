#pragma once

// The regions of a plan's arena, and every tensor's place in them. Pure functions.

#include <cstddef>
#include <vector>

#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/cast_in_step.h"

namespace trainyard::plan {

// What an evaluation leaves for its reader.
std::vector<TensorId> EvaluationResults(const Plan& plan);

// Writes plan.offsets, the regions and arena_bytes, from tensors and ops as they are: parameters,
// copies at half their distances, optimizer state, averages, buffers, `scalars`, gradients, of
// these those in 16 bits first, likewise at half the distances of their parameters. Last come
// activations: those of training and of evaluation and the scratch of the optimizer take turns, in
// the memory of gradients as far as these do not need it (passes/share_gradients.h). Of a stage of
// a pipeline plan.chunks say what its micro-batches in flight keep (passes/flights.h).
void LayOut(const std::vector<TensorId>& scalars, Plan& plan);

// The last passes over the ops of `plan`, and then LayOut, each in the way that takes least memory.
// Sums go into the norms behind them (passes/residual_norm.h): all, or those that need no more at
// the op itself, or none, so that neither activation_bytes nor arena_bytes, which it sets, rise.
// `copies` are cast once in plan.micro, of which the first `forward` ops are the forward pass, or
// twice (passes/cast_in_step.h).
void LayOutSmallest(const std::vector<TensorId>& scalars, const std::vector<StepCopy>& copies,
                    size_t forward, Plan& plan);

}  // namespace trainyard::plan
