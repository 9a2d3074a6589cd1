#pragma once

// What a pass leaves waiting, and what is free then: for whoever gets nodes. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/planner.h"
#include "server/scheduler/scheduler_state.h"
#include "server/scheduler/slot_demand.h"

namespace trainyard {

struct CapacityView {
  absl::Time now;  // the store's clock
  int64_t leader_epoch = 0;

  // Jobs that ask for the same and wait for slots, in the order in which the first of each is
  // served. Left out are jobs in backoff, and those for which slots are about to come free or are
  // kept from one gang to the next, and those that the limit of their project would not let start.
  struct Waiting {
    SlotDemand demand;
    int64_t jobs = 0;
  };
  std::vector<Waiting> waiting;

  struct Slot {
    std::string device;
    std::string arithmetic;  // as SlotDemand has it
    int64_t bytes = 0;
    bool free = false;  // and its node takes work
  };
  // Every node that is registered, by name.
  struct Node {
    std::string name;
    bool takes_work = false;
    bool away = false;                   // its lease is over
    bool holds = false;                  // a rank that may live
    std::vector<std::string> lost_jobs;  // uids of those whose lost ranks may live there
    std::vector<Slot> slots;
  };
  std::vector<Node> nodes;
};

// After `pass`, whose placements count as made.
CapacityView CapacityOf(const SchedulerState& state, const Pass& pass, int64_t leader_epoch);

}  // namespace trainyard
