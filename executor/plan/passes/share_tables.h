#pragma once

// Where a job shards its parameters: of a table that is kept by row each rank has some rows, and
// their state. What a batch looks up is received from the ranks that have it. Pure.

#include <cstddef>
#include <cstdint>

#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/optimizer_step.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// Whether each of `ranks` ranks is to have some rows alone.
bool SharesTables(const v1::JobSpec& spec, const TrainedParameters& parameters, int64_t ranks);

// Only if SharesTables: gives rank r of `ranks` the rows from n r / ranks to n (r + 1) / ranks of
// each table of n, and rank `rank`, whose plan this is, a place for them. Where shares have several
// owners (CutBuckets), there are n shares for fewer ranks, and rank r has share r mod n.
void ShareTables(const v1::Optimizer& optimizer, const TrainedParameters& parameters, int64_t ranks,
                 int64_t rank, Plan& plan);

// Takes the look-ups out of `plan.micro` and `plan.evaluate`, which receive them from then on.
// Returns how many ops the forward pass of `plan.micro` has lost.
size_t ReceiveLookUps(Plan& plan);

// Once the ops are in their final order: says which reads the look-ups first.
void FindFirstReads(Plan& plan);

}  // namespace trainyard::plan
