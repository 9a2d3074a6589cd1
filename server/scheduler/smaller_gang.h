#pragma once

// A waiting job on fewer slots than it asks for: what of it would start at once. Pure.

#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/slots.h"
#include "server/scheduler/spec_changes.h"

namespace trainyard {

struct SmallerGang {
  int slots = 0;  // the most that would start now, fewer than were asked for; 0: none would
  int free = 0;   // for it: the most that would start now if it might have any number
  std::vector<std::pair<std::string, int>> nodes;  // that it would take: how many slots of each
  // The most that would start once they are free, if those that are present are too few: slots that
  // fit the job, taken ones included, on nodes that take work. 0: none would.
  int later = 0;
  bool sets_max = false;  // resources.max_slots has to be set with min_slots
};

// `slots` as they are when it is the job's turn: what is kept for jobs ahead serves it no more than
// what is taken. Numbers of slots that the job may not have are left out.
SmallerGang FindSmallerGang(const SlotTable& slots, const SlotDemand& demand,
                            const SpecChanges& changes);

// "5 such slots are free for it, 3 on nodes/a, 2 on nodes/b: with resources.min_slots 5 it would
// start now …"; "" for a job of one slot. `logical_ranks`: of the job, which stay as they are.
std::string DescribeSmallerGang(const SmallerGang& gang, const SlotDemand& demand,
                                int logical_ranks);

}  // namespace trainyard
