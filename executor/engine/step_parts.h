#pragma once

// What a rank runs in a step, micro-batch by micro-batch. Pure.

#include <compare>
#include <cstdint>
#include <vector>

#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/plan.h"

namespace trainyard::engine {

// What is run once a micro-batch is in place.
struct StepPart {
  bool begins_step = false;          // plan.begin goes before it
  bool begins_logical_rank = false;  // plan.zero goes before it
  int64_t partial = 0;               // the partial sum that its gradients are added to
  int64_t folds = 0;  // after it `partial` is added to the one below, that to the next, and so on
  bool ends_step = false;  // plan.norm and plan.end go after it
  int64_t round = 0;       // of those in which gradients that are sharded are handed out, on a GPU
  bool meets = false;      // what other ranks have made is added while it runs or after it

  friend auto operator<=>(const StepPart&, const StepPart&) = default;
};

// The parts of a step of a rank that hosts `run` of `logical_ranks`, each of `micro_batches`. Only
// a rank that hosts all of them ends the step with the last one: others have to meet before.
std::vector<StepPart> StepParts(int64_t logical_ranks, plan::LeafRange run, int64_t micro_batches);

// The logical ranks that rank `rank` of `ranks` hosts, in the order in which it computes them: a
// run or, where gradients are sharded, some in turn with the others.
std::vector<int64_t> HostedRanks(const plan::Plan& plan, int64_t ranks, int64_t rank);

// Which of `ranks` ranks hosts each logical rank; as many to each as plan::HostedBy says.
std::vector<int64_t> HostsOf(const plan::Plan& plan, int64_t ranks);

// The parts of a step of a rank that hosts `hosted` of them, of one micro-batch each, where
// gradients are sharded: what one has made is handed out before the next begins. `rounds`: each has
// a number, since a GPU records what it runs.
std::vector<StepPart> PartsInTurn(int64_t hosted, bool rounds);

// How many parts of the next step a rank with `own` of them may enqueue while a step is on its way,
// if it keeps `in_use` micro-batches at a time. A step ends with an exchange: either all of `ranks`
// ranks enqueue the whole of it, or none does.
int64_t PartsAhead(int64_t logical_ranks, int64_t ranks, int64_t micro_batches, int64_t own,
                   int64_t in_use);

}  // namespace trainyard::engine
