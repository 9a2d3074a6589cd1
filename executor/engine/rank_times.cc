#include "executor/engine/rank_times.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "executor/plan/graph/fold_tree.h"

namespace trainyard::engine {
namespace {

// By value, then by rank.
std::vector<std::pair<double, int>> Sorted(absl::Span<const RankTimes> ranks,
                                           double RankTimes::*value) {
  std::vector<std::pair<double, int>> sorted;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    sorted.emplace_back(ranks[rank].*value, static_cast<int>(rank));
  }
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

constexpr std::pair<const char*, double RankTimes::*> kValues[] = {
    {"compute_ms", &RankTimes::compute_ms},
    {"wait_ms", &RankTimes::wait_ms},
    {"memory_bytes", &RankTimes::memory_bytes}};

}  // namespace

RankTimes StepTimes::Take() {
  const double steps = static_cast<double>(std::max<int64_t>(1, steps_));
  const RankTimes times = {.compute_ms = absl::ToDoubleMilliseconds(took_ - waited_) / steps,
                           .wait_ms = absl::ToDoubleMilliseconds(waited_) / steps};
  *this = StepTimes();
  return times;
}

SlowestRank FindSlowest(absl::Span<const RankTimes> ranks, const RankShares& shares) {
  std::vector<std::pair<double, int>> of_share;
  std::vector<double> hosted;
  const int count = static_cast<int>(ranks.size());
  for (int rank = 0; rank < count; ++rank) {
    const int64_t share = shares.of_rank(count, rank);
    // A rank that has next to none of the products has other ops to compute.
    hosted.push_back(static_cast<double>(std::max<int64_t>(1, share)) *
                     std::max(ranks[rank].work, 1e-3));
    of_share.emplace_back(ranks[rank].compute_ms / hosted.back(), rank);
  }
  if (of_share.empty()) return {};
  std::sort(of_share.begin(), of_share.end());
  const double median = of_share[(of_share.size() - 1) / 2].first;
  const auto& [most, rank] = of_share.back();
  return {.rank = rank,
          .ratio = median > 0 ? most / median : 1,
          .excess_ms = (most - median) * hosted[rank]};
}

std::map<std::string, double> RankMetrics(absl::Span<const RankTimes> ranks,
                                          const RankShares& shares) {
  std::map<std::string, double> values;
  if (ranks.empty()) return values;
  values["ranks.count"] = static_cast<double>(ranks.size());
  for (const auto& [name, value] : kValues) {
    const std::vector<std::pair<double, int>> sorted = Sorted(ranks, value);
    const std::string prefix = absl::StrCat("ranks.", name, ".");
    values[prefix + "min"] = sorted.front().first;
    values[prefix + "median"] = sorted[(sorted.size() - 1) / 2].first;
    values[prefix + "max"] = sorted.back().first;
    values[prefix + "max_rank"] = sorted.back().second;
  }
  values["ranks.planned_bytes.max"] = Sorted(ranks, &RankTimes::planned_bytes).back().first;
  const SlowestRank slowest = FindSlowest(ranks, shares);
  values["ranks.slowest"] = slowest.rank;
  values["ranks.slowest_ratio"] = slowest.ratio;
  if (ranks.size() > kRanksOneByOne) return values;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [name, value] : kValues) {
      values[absl::StrCat("rank.", rank, ".", name)] = ranks[rank].*value;
    }
  }
  return values;
}

std::string StragglerWatch::Look(int64_t steps, absl::Span<const RankTimes> ranks,
                                 const RankShares& shares) {
  if (told_ || !std::exchange(begun_, true)) return "";
  const SlowestRank slowest = FindSlowest(ranks, shares);
  const RankTimes& times = ranks[slowest.rank];
  const bool slow = slowest.ratio >= kRatio &&
                    slowest.excess_ms >= kShareOfStep * (times.compute_ms + times.wait_ms);
  const int rank = slow ? slowest.rank : -1;
  if (rank != std::exchange(rank_, rank)) steps_ = reports_ = 0;
  if (!slow) return "";
  steps_ += steps;
  ++reports_;
  if (steps_ < kSteps || reports_ < kReports) return "";
  told_ = true;
  return absl::StrFormat(
      "rank %d is a straggler: for %d steps it has computed %.2f times as long as the median rank "
      "for as much work (%.1f ms of a step of %.1f ms), and the other ranks wait for it",
      rank, steps_, slowest.ratio, times.compute_ms, times.compute_ms + times.wait_ms);
}

}  // namespace trainyard::engine
