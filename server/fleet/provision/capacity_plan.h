#pragma once

// How many nodes each pool should have. Pure.

#include <map>
#include <string>
#include <vector>

#include "server/fleet/provision/pools.h"
#include "server/scheduler/capacity_view.h"
#include "storage/records/node_request.h"

namespace trainyard {

// What is remembered of a pool from plan to plan.
struct PoolState {
  // Its nodes compute so, as one of them told; empty: not known.
  std::string arithmetic;
  // Nothing is asked of it before: it failed.
  absl::Time not_before = absl::InfinitePast();
};

// How many nodes are to be asked of a pool, and for whom.
struct CapacityAsk {
  std::string pool;
  int nodes = 0;
  std::string why;  // "3 jobs that need 2 CPU slots of 1.0 GiB each"
};

struct CapacityPlan {
  std::vector<CapacityAsk> asks;
  std::vector<std::string> releases;  // nodes that nobody has needed for their pool's idle_ttl
  std::map<std::string, absl::Time> idle_since;  // of nodes that nobody needs now
};

// The waiting jobs take, in their order, what is free, then what is coming, then new nodes of the
// first pool that can give all that is missing. A job that gets nothing keeps, as in a pass, every
// free slot that it could use, if the slots that are there could ever hold it.
//
// A job gets slots of one device and arithmetic unless it may mix them, so what is coming counts
// together with what is there only where both are known to compute alike.
CapacityPlan PlanCapacity(const std::vector<Pool>& pools,
                          const std::map<std::string, PoolState>& states, const CapacityView& view,
                          const std::vector<NodeRequest>& requests,
                          const std::map<std::string, absl::Time>& idle_since);

// The arithmetic of each pool, by what its nodes that are registered tell of slots of its device.
void LearnArithmetic(const std::vector<Pool>& pools, const CapacityView& view,
                     const std::vector<NodeRequest>& requests,
                     std::map<std::string, PoolState>& states);

}  // namespace trainyard
