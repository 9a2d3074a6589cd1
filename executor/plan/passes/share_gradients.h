#pragma once

// Activations, and copies of weights that do not outlive a step, in the memory of gradients. Within
// a step of one micro-batch a gradient needs its place from its first writer on: what the forward
// pass left there before may be gone by then. (A rank that adds up several logical ranks writes
// gradients in several places, and shares none.) Between steps no gradient is needed.
//
// No bits change, and every gradient is there when the norm is taken: a step that is not finite can
// be left out as before.

#include <vector>

#include "executor/plan/graph/plan.h"
#include "executor/plan/memory/memory.h"

namespace trainyard::plan {

// Zeroes the gradients of `plan` whose first touch in plan.micro adds to them: with one micro-batch
// per logical rank in plan.micro, right before that touch, otherwise in plan.zero, neighbours in
// one go.
void ZeroGradients(Plan& plan);

// Where gradients lie, from the start of plan.gradient_region, while plan.micro runs, or
// plan.evaluate_begin and then plan.evaluate. What pads a gradient to whole lines stays zero for
// ever: norm and optimizer sweep it. Where gradients are sharded: where the sums that a rank keeps
// lie, from the start of plan.share_region, of which nothing stays.
std::vector<ReservedRange> GradientsInMicro(const Plan& plan);
std::vector<ReservedRange> GradientsInEvaluation(const Plan& plan);

}  // namespace trainyard::plan
