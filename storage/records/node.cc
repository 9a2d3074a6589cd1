#include "storage/records/node.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {

namespace {

// Assignment, events and log of a rank, until they are delivered.
constexpr int64_t kLeastDiskBytes = int64_t{64} << 20;

}  // namespace

absl::Status CheckNode(const NodeRecord& node) {
  if (node.name.empty()) return absl::InvalidArgumentError("node: empty");
  TY_RETURN_IF_ERROR(CheckText("node", node.name));
  TY_RETURN_IF_ERROR(CheckText("uid", node.uid));
  TY_RETURN_IF_ERROR(CheckText("instance", node.instance));
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

std::string CordonReason(const NodeRecord& node) {
  if (node.report.disk_free_bytes.value_or(kLeastDiskBytes) >= kLeastDiskBytes) return "";
  return absl::StrCat("its disk is full: ", *node.report.disk_free_bytes >> 20,
                      " MiB are free where its agent keeps what ranks write (--state-dir), ",
                      kLeastDiskBytes >> 20, " MiB are needed; free some");
}

absl::Status CheckNameIsFree(const NodeRecord& holder, const NodeRecord& node) {
  if (!holder.reachable || holder.uid.empty() ||
      (holder.uid == node.uid && holder.instance == node.instance)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "node: nodes/", node.name, " is another agent, at ", holder.address,
      holder.uid == node.uid ? ", started from a copy of the same state directory"
                             : ", with another state directory",
      ", and its lease holds; choose another --node, or stop that agent and wait until its lease "
      "is over"));
}

bool TakesWork(const NodeRecord& node, const std::vector<int>& slots) {
  if (!node.reachable || node.draining) return false;
  return std::all_of(slots.begin(), slots.end(), [&node](int index) {
    return std::any_of(node.slots.begin(), node.slots.end(),
                       [index](const SlotRecord& slot) { return slot.index == index; });
  });
}

}  // namespace trainyard
