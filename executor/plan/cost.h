#pragma once

// What a plan costs, from its shapes alone.

#include <cstdint>

#include "executor/plan/facts.h"
#include "executor/plan/plan.h"

namespace trainyard::plan {

// Floating-point operations of the matrix products of one op on `tensors` (matmul 2mnk, convolution
// 2 x outputs x window x channels, attention; half of it when causal). Element-wise work is not
// counted, as is the custom when utilisation is quoted.
double Flops(const std::vector<Tensor>& tensors, const Op& op);

// Of all micro-batches of a step on all `ranks`, and of the optimizer's step, which they make once
// together.
double FlopsPerStep(const Plan& plan, int64_t ranks);

// Scratch that the CPU back end may ask for to run one op; see cost.cc for the formulas.
int64_t WorkspaceBytes(const std::vector<Tensor>& tensors, const Op& op);

// The most scratch that a worker with `threads` CPU threads may take for `plan`: what is planned,
// for each group of as many threads as scratch is counted for (scratch.h).
int64_t WorkspaceLimit(const Plan& plan, int threads);

// Fills plan.summary. Everything else of `plan` is ready; `ranks` share the global batch.
void Summarize(const v1::JobSpec& spec, const DataFacts& facts, int64_t ranks, Plan& plan);

}  // namespace trainyard::plan
