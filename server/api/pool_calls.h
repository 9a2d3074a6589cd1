#pragma once

// What is answered about pools and the nodes that were asked of them. Pure.

#include <vector>

#include "server/fleet/provision/pools.h"
#include "storage/records/node.h"
#include "storage/records/node_request.h"
#include "trainyard/v1/run_services.pb.h"

namespace trainyard {

void ShowPools(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
               const std::vector<NodeRecord>& nodes, v1::ListPoolsResponse* response);

}  // namespace trainyard
