#include "storage/records/node.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {

absl::Status CheckNode(const NodeRecord& node) {
  if (node.name.empty()) return absl::InvalidArgumentError("node: empty");
  TY_RETURN_IF_ERROR(CheckText("node", node.name));
  TY_RETURN_IF_ERROR(CheckText("incarnation", node.incarnation));
  TY_RETURN_IF_ERROR(CheckText("address", node.address));
  TY_RETURN_IF_ERROR(CheckText("agent_version", node.agent_version));
  for (const auto& [key, value] : node.labels) {
    TY_RETURN_IF_ERROR(CheckText("labels: key", key));
    TY_RETURN_IF_ERROR(CheckText(absl::StrCat("labels.", key), value));
  }
  std::set<int> indices;
  for (const SlotRecord& slot : node.slots) {
    TY_RETURN_IF_ERROR(CheckText("slots.device", slot.device));
    TY_RETURN_IF_ERROR(CheckText("slots.model", slot.model));
    if (slot.index < 0 || !indices.insert(slot.index).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("slots.index: found ", slot.index, ", expected different ones from 0 on"));
    }
  }
  return absl::OkStatus();
}

bool TakesWork(const NodeRecord& node, const std::vector<int>& slots, absl::Time now) {
  if (!node.reachable || node.draining || node.lease_end <= now) return false;
  return std::all_of(slots.begin(), slots.end(), [&node](int index) {
    return std::any_of(node.slots.begin(), node.slots.end(),
                       [index](const SlotRecord& slot) { return slot.index == index; });
  });
}

}  // namespace trainyard
