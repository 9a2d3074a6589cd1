#include "server/fleet/early_end.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {
namespace {

bool IsEarlyEnd(const RankEventRecord& event) {
  const auto* finished = std::get_if<RankFinished>(&event.what);
  return finished != nullptr && !finished->suspended && !finished->reason.empty();
}

bool MayEndEarly(const JobRecord& job) {
  v1::JobSpec spec;
  return spec.ParseFromString(job.spec) && spec.evaluation().has_early_stopping();
}

}  // namespace

bool ClaimsEarlyEnd(const std::vector<RankEventRecord>& events) {
  return std::any_of(events.begin(), events.end(), IsEarlyEnd);
}

void CheckEarlyEnd(const RankId& id, const std::vector<DesiredRank>& desired,
                   std::vector<RankEventRecord>& events) {
  const auto mine = std::find_if(desired.begin(), desired.end(),
                                 [&](const DesiredRank& one) { return one.rank.id == id; });
  const auto claim = std::find_if(events.begin(), events.end(), IsEarlyEnd);
  if (mine == desired.end() || claim == events.end() || MayEndEarly(mine->job)) return;
  const auto& finished = std::get<RankFinished>(claim->what);
  if (finished.step >= mine->job.total_steps) return;
  claim->what =
      FailureRecord{.category = "INTERNAL",
                    .message = absl::StrCat("the worker says that it stopped early at step ",
                                            finished.step, " of ", mine->job.total_steps,
                                            ", and the job does not ask for early stopping"),
                    .retryable = false,
                    .rank = id.rank,
                    .node = mine->rank.node};
  events.erase(claim + 1, events.end());
}

}  // namespace trainyard
