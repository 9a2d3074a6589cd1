#pragma once

// What the yard asked for, against what the engine has. Pure.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/fleet/provision/node_engine.h"
#include "server/fleet/provision/pools.h"
#include "server/scheduler/capacity_view.h"
#include "storage/records/node_request.h"

namespace trainyard {

struct Reconciled {
  std::vector<NodeRequest> changed;   // as they are to be stored
  std::vector<std::string> give_up;   // nodes that did not come, if they still have not
  std::vector<std::string> releases;  // ids of allocations that nobody wants
  // Of pools whose nodes did not come up, why: "a-3f9c01b2-1: Slurm FAILED before its agent came".
  std::map<std::string, std::string> failed_pools;
};

// Nodes whose agents were ever heard of, and those of them whose leases hold.
struct KnownNodes {
  std::set<std::string> registered, here;
};
KnownNodes NodesIn(const CapacityView& view);

// `allocations`: all that the engine has.
//
// Of several allocations under one name, left by an answer that was lost, the first one stays. What
// has no request that is live is released. A request that the engine has never heard of stays
// WANTED. One that it has forgotten ended, unless its node is here, and is not proven gone.
Reconciled Reconcile(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
                     const std::vector<Allocation>& allocations, const KnownNodes& known);

// Of nodes that are there, those that bring less than their pool says, as failures of the pool that
// are not known yet; they stay.
Reconciled FindLesser(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
                      const CapacityView& view);

// Nodes that are to be ensured, by ask: those of WANTED requests.
std::map<std::string, std::vector<int>> WantedByAsk(const std::vector<NodeRequest>& requests,
                                                    const std::string& pool);

// "2 nodes are asked of pool a: Slurm PENDING (Resources)", a sentence for each pool and what its
// engine says, and another for one whose newest node failed a short time ago; nothing of those that
// are up.
std::vector<std::string> DescribeRequests(const std::vector<NodeRequest>& requests,
                                          const std::set<std::string>& registered, absl::Time now);

}  // namespace trainyard
