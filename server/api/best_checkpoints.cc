#include "server/api/best_checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/metrics.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {

absl::StatusOr<std::map<int64_t, int>> BestRanks(const JobRecord& job,
                                                 const std::vector<CheckpointRecord>& checkpoints) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(job.spec)) {
    return absl::InternalError(absl::StrCat("job ", job.uid, ": its stored spec cannot be read"));
  }
  std::map<int64_t, int> ranks;
  if (!spec.checkpoint().has_best()) return ranks;
  const v1::BestCheckpoints& best = spec.checkpoint().best();
  const plan::Metric metric = plan::MetricOf(best);
  std::vector<std::pair<int64_t, double>> scored;
  for (const CheckpointRecord& checkpoint : checkpoints) {
    const auto value = checkpoint.metrics.find(metric.name);
    if (value != checkpoint.metrics.end()) scored.emplace_back(checkpoint.step, value->second);
  }
  std::sort(scored.begin(), scored.end(), [&](const auto& a, const auto& b) {
    return a.second == b.second ? a.first < b.first : metric.Better(a.second, b.second);
  });
  for (const auto& [step, value] : scored) {
    if (static_cast<int>(ranks.size()) == best.keep()) break;
    ranks.emplace(step, static_cast<int>(ranks.size()) + 1);
  }
  return ranks;
}

}  // namespace trainyard
