#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace trainyard {

struct SlotRecord {
  int index = 0;
  std::string device;  // "CPU" or "CUDA"
  std::string model;
  int64_t memory_bytes = 0;
  int cpu_threads = 0;
};

// What a GPU is doing, as its driver says; 0 where it does not tell.
struct SlotUsage {
  int index = 0;           // of the slot
  double utilization = 0;  // 0 to 1
  int64_t memory_used_bytes = 0;
  double temperature_celsius = 0;
  double power_watts = 0;
  int last_xid = 0;

  friend bool operator==(const SlotUsage&, const SlotUsage&) = default;
};

// What an agent tells with each heartbeat.
struct NodeReport {
  std::vector<SlotUsage> usage;
  std::optional<int64_t> disk_free_bytes;  // where the agent keeps what its ranks write
};

struct NodeRecord {
  std::string name;         // a label: unique among the nodes whose leases hold
  std::string uid;          // digest of the agent's secret; "": one that has none
  std::string instance;     // which boot of which machine, and which state directory there
  std::string incarnation;  // of the agent's process, and of its session
  std::string address;
  std::string agent_version;
  std::map<std::string, std::string> labels;
  std::vector<SlotRecord> slots;
  NodeReport report;  // as of the last heartbeat
  bool draining = false;
  bool reachable = true;  // false once its lease ended and its ranks were declared lost
  int64_t beat = 0;       // grows with each renewal of its lease
  absl::Time lease_end;   // on the store's clock; renewed by heartbeats
  absl::Time create_time;
};

// kInvalidArgument names the field of a registration that cannot be kept.
absl::Status CheckNode(const NodeRecord& node);

// Why nothing is placed on a node that is reachable, and what to do about it; "" when something may
// be. What runs there goes on.
std::string CordonReason(const NodeRecord& node);

// Whether `node` may take over the name that `holder` had: another session of the same agent, or
// the lease of `holder` is over. kFailedPrecondition says who holds it.
absl::Status CheckNameIsFree(const NodeRecord& holder, const NodeRecord& node);

// Whether new ranks may be placed on these slots of the node, as far as the node goes. How old its
// lease is, the leader judges before it decides.
bool TakesWork(const NodeRecord& node, const std::vector<int>& slots);

}  // namespace trainyard
