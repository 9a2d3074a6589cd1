#include "storage/scheduler_store.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

absl::Status CheckReason(const Reason& reason) {
  TY_RETURN_IF_ERROR(CheckText("reason.code", reason.code));
  return CheckText("reason.message", reason.message);
}

absl::Status CheckPlacement(const Placement& placement) {
  TY_RETURN_IF_ERROR(CheckReason(placement.reason));
  if (placement.ranks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement of job ", placement.job_uid, ": no rank"));
  }
  std::set<std::pair<std::string, int>> slots;
  for (const Placement::Rank& rank : placement.ranks) {
    bool good = !rank.slots.empty();
    for (const int slot : rank.slots) good = good && slots.emplace(rank.node, slot).second;
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat("placement of job ", placement.job_uid,
                                                     ": a rank without slot, or a slot twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view ReplicaOf(absl::string_view holder) { return holder.substr(0, holder.find('/')); }

absl::Status CheckDecisions(const Decisions& decisions) {
  for (const Placement& placement : decisions.placements) {
    TY_RETURN_IF_ERROR(CheckPlacement(placement));
  }
  for (const Suspension& suspension : decisions.suspensions) {
    TY_RETURN_IF_ERROR(CheckReason(suspension.reason));
  }
  for (const ReasonUpdate& update : decisions.reasons) {
    TY_RETURN_IF_ERROR(CheckReason(update.reason));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
