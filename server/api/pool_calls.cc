#include "server/api/pool_calls.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/api/convert.h"

namespace trainyard {
namespace {

v1::PoolNode::State StateOf(const NodeRequest& request, bool up) {
  switch (request.state) {
    case NodeRequestState::kWanted:
      return up ? v1::PoolNode::UP : v1::PoolNode::WANTED;
    case NodeRequestState::kAsked:
      return up ? v1::PoolNode::UP : v1::PoolNode::ASKED;
    case NodeRequestState::kReleasing:
      return v1::PoolNode::RELEASING;
    case NodeRequestState::kEnded:
      break;
  }
  return request.failed ? v1::PoolNode::FAILED : v1::PoolNode::ENDED;
}

v1::PoolNode ToProto(const NodeRequest& request, bool up) {
  v1::PoolNode node;
  node.set_name(absl::StrCat("nodes/", request.node));
  node.set_state(StateOf(request, up));
  node.set_engine_id(request.engine_id);
  node.set_engine_words(request.engine_words);
  node.set_why(request.why);
  SetTimestamp(request.create_time, *node.mutable_create_time());
  SetTimestamp(request.change_time, *node.mutable_change_time());
  return node;
}

}  // namespace

void ShowPools(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
               const std::vector<NodeRecord>& nodes, v1::ListPoolsResponse* response) {
  for (const Pool& pool : pools) {
    v1::Pool& shown = *response->add_pools();
    shown.set_name(absl::StrCat("pools/", pool.name));
    shown.set_engine("slurm");
    shown.set_min(pool.min);
    shown.set_max(pool.max);
    shown.set_slots_per_node(pool.slots);
    shown.set_device(pool.device == "CUDA" ? v1::Resources::CUDA : v1::Resources::CPU);
    shown.set_slot_memory_bytes(pool.bytes);
  }
  std::set<std::string> up;
  for (const NodeRecord& node : nodes) {
    if (node.reachable) up.insert(node.name);
  }
  for (const NodeRequest& request : requests) {
    const std::string name = absl::StrCat("pools/", request.pool);
    auto* const all = response->mutable_pools();
    auto pool = std::find_if(all->begin(), all->end(),
                             [&](const v1::Pool& one) { return one.name() == name; });
    if (pool == all->end()) {
      response->add_pools()->set_name(name);
      pool = all->end() - 1;
    }
    *pool->add_nodes() = ToProto(request, up.count(request.node) > 0);
  }
}

}  // namespace trainyard
