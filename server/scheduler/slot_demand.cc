#include "server/scheduler/slot_demand.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/printable.h"
#include "storage/records/attempt.h"
#include "storage/records/node.h"

namespace trainyard {

namespace {

// Where the state is that its last gang left in memory; empty: it left none.
std::vector<std::string> NodesWithState(const JobRecord& job) {
  std::vector<std::string> nodes;
  if (!MayTryKeptState(job, job.attempt + 1) || job.resize->kept_step == 0) return nodes;
  for (const RankSlots& rank : job.resize->ranks) nodes.push_back(rank.node);
  return nodes;
}

}  // namespace

std::string AvoidedBy(const JobRecord& job) {
  if (job.avoid_node.empty()) return "";
  const std::vector<std::string> nodes = NodesWithState(job);
  const bool only_there =
      !nodes.empty() && std::all_of(nodes.begin(), nodes.end(), [&job](const std::string& node) {
        return node == job.avoid_node;
      });
  return only_there ? "" : job.avoid_node;
}

SlotDemand WholeDemandOf(const JobRecord& job) {
  SlotDemand demand{.count = std::max(1, job.min_slots),
                    .device = job.device,
                    .bytes = job.bytes_per_slot,
                    .most = job.max_slots,
                    .group = std::max(1, job.group_ranks),
                    .mixed = job.arithmetic_rule == ArithmeticRule::kAny};
  if (job.arithmetic_rule == ArithmeticRule::kSame) demand.arithmetic = job.arithmetic;
  demand.near = NodesWithState(job);
  return demand;
}

SlotDemand OfAnyArithmetic(SlotDemand demand) {
  demand.mixed = true;
  demand.arithmetic.clear();
  return demand;
}

std::string DescribeDemand(const SlotDemand& demand) {
  std::string text =
      absl::StrCat(demand.count, demand.device.empty() ? "" : " ", demand.device,
                   demand.count == 1 ? " slot of " : " slots of ", DescribeBytes(demand.bytes));
  if (!demand.arithmetic.empty()) {
    absl::StrAppend(&text, demand.count == 1 ? " that computes" : " that compute", " as it began");
  }
  if (!demand.avoid.empty()) {
    absl::StrAppend(&text, ", not on nodes/", demand.avoid, ", which failed it last");
  }
  return text;
}

}  // namespace trainyard
