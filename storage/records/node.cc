#include "storage/records/node.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "storage/base/field_error.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {

namespace {

// Room for the assignment, events and log of a rank until they are delivered.
constexpr int64_t kLeastDiskBytes = int64_t{64} << 20;

int64_t LeastDiskBytes(const NodeReport& report) {
  return std::min(kLeastDiskBytes, report.disk_total_bytes.value_or(4 * kLeastDiskBytes) / 4);
}

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
      return FieldError("slots.index", slot.index, "different ones from 0 on");
    }
  }
  return absl::OkStatus();
}

std::string CordonReason(const NodeRecord& node) {
  const NodeReport& report = node.report;
  const int64_t least = LeastDiskBytes(report);
  if (report.disk_free_bytes.value_or(least) >= least) return node.cordon;
  return absl::StrCat("its disk is full: ", DescribeBytes(*report.disk_free_bytes), " are free ",
                      report.state_dir.empty() ? "" : absl::StrCat("in ", report.state_dir, ", "),
                      "where its agent keeps what ranks write (--state-dir), ",
                      DescribeBytes(least), " are needed; free some on that disk");
}

std::string DescribeReport(const NodeReport& report) {
  std::vector<std::string> parts;
  std::vector<std::string> free;
  if (report.disk_free_bytes.has_value()) {
    free.push_back(absl::StrCat(DescribeBytes(*report.disk_free_bytes), " of disk"));
  }
  if (report.memory_free_bytes.has_value()) {
    free.push_back(absl::StrCat(DescribeBytes(*report.memory_free_bytes), " of memory"));
  }
  if (!free.empty()) parts.push_back(absl::StrCat(absl::StrJoin(free, " and "), " are free"));
  if (report.failed_starts > 0) {
    parts.push_back(absl::StrCat(report.failed_starts, " starts failed"));
  }
  if (report.failed_writes > 0) {
    parts.push_back(absl::StrCat(report.failed_writes, " writes failed"));
  }
  return parts.empty() ? "nothing about itself" : absl::StrJoin(parts, "; ");
}

absl::Status CheckNameIsFree(const NodeRecord& holder, const std::vector<RankId>& alive,
                             const NodeRecord& node) {
  if (!holder.reachable ||
      (holder.uid == node.uid && SameInstance(holder.instance, node.instance))) {
    return absl::OkStatus();
  }
  if (holder.uid.empty()) {
    const std::set<RankId> found(node.found.begin(), node.found.end());
    const bool knows_all = std::all_of(
        alive.begin(), alive.end(), [&found](const RankId& rank) { return found.count(rank) > 0; });
    if (node.uid.empty() || knows_all) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "node: nodes/", node.name, " is another agent, at ", holder.address,
      holder.uid == node.uid ? ", started from a copy of the same state directory"
                             : ", with another state directory",
      ", and its lease holds; choose another --node, or stop that agent and wait until its lease "
      "is over"));
}

absl::Status LeaseIsOver(const std::string& node, const std::string& incarnation) {
  return absl::AbortedError(absl::StrCat("the lease of ", node, " under incarnation ", incarnation,
                                         " is over: stop all work and register again"));
}

bool MayHoldSlots(const NodeRecord& node, const LostRank& rank) {
  const absl::string_view then = BootOf(rank.claim.instance), now = BootOf(node.instance);
  return then.empty() || now.empty() || then == now;
}

const LostRank* LostRankOn(const NodeRecord& node, int slot) {
  for (const LostRank& rank : node.lost_ranks) {
    const bool names_it = std::count(rank.slots.begin(), rank.slots.end(), slot) > 0;
    if (names_it && MayHoldSlots(node, rank)) return &rank;
  }
  return nullptr;
}

bool IsRevoked(const NodeRecord& node) { return absl::EndsWith(node.incarnation, kRevokedSession); }

bool GivesWorkAway(const NodeRecord& node) {
  return node.draining || node.leave_time != absl::InfiniteFuture();
}

bool TakesWork(const NodeRecord& node, const std::vector<int>& slots) {
  if (!node.reachable || GivesWorkAway(node) || IsRevoked(node)) return false;
  return std::all_of(slots.begin(), slots.end(), [&node](int index) {
    if (LostRankOn(node, index) != nullptr) return false;
    return std::any_of(node.slots.begin(), node.slots.end(),
                       [index](const SlotRecord& slot) { return slot.index == index; });
  });
}

bool TakesWorkNow(const NodeRecord& node, absl::Time now) {
  return node.reachable && node.lease_end > now && !GivesWorkAway(node) && !IsRevoked(node) &&
         CordonReason(node).empty();
}

}  // namespace trainyard
