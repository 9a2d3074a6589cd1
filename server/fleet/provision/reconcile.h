#pragma once

// What the yard asked for, against what the engine has. Pure.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/fleet/provision/node_engine.h"
#include "server/fleet/provision/pools.h"
#include "storage/records/node_request.h"

namespace trainyard {

struct Reconciled {
  std::vector<NodeRequest> changed;   // as they are to be stored
  std::vector<std::string> releases;  // ids of allocations that nobody wants
  // Of pools whose nodes did not come up, why: "a-3f9c01b2-1: Slurm FAILED before its agent came".
  std::map<std::string, std::string> failed_pools;
};

// `allocations`: all that the engine has. `registered`: nodes whose agents were ever heard of.
//
// Of several allocations under one name, left by an answer that was lost, the first one stays. What
// has no request that is live is released. A request that the engine has never heard of stays
// WANTED. One that it has forgotten ended, and is not proven gone.
Reconciled Reconcile(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
                     const std::vector<Allocation>& allocations,
                     const std::set<std::string>& registered);

// Nodes that are to be ensured, by ask: those of WANTED requests.
std::map<std::string, std::vector<int>> WantedByAsk(const std::vector<NodeRequest>& requests,
                                                    const std::string& pool);

// "2 nodes are asked of pool a: Slurm PENDING (Resources)", a sentence for each pool and what its
// engine says, and another for one whose newest node failed a short time ago; nothing of those that
// are up.
std::vector<std::string> DescribeRequests(const std::vector<NodeRequest>& requests,
                                          const std::set<std::string>& registered, absl::Time now);

}  // namespace trainyard
