#pragma once

// What a plan costs, from its shapes alone.

#include <cstdint>

#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"

namespace trainyard::plan {

// Floating-point operations of all micro-batches of a step, of all logical ranks, and of the
// optimizer's step, which they make once together.
double FlopsPerStep(const Plan& plan);

// Of the FLOPs of a logical rank those of this plan's rank: all, but where others share it.
double OwnShare(const Plan& plan);

// The most scratch that a worker with `threads` CPU threads may take for `plan`: what is planned,
// for each group of as many threads as scratch is counted for (ops/rules.h: kThreads).
int64_t WorkspaceLimit(const Plan& plan, int threads);

// Fills plan.summary. Everything else of `plan` is ready.
void Summarize(const v1::JobSpec& spec, const DataFacts& facts, Plan& plan);

}  // namespace trainyard::plan
