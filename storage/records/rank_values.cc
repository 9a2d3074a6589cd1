#include "storage/records/rank_values.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace trainyard {
namespace {

constexpr absl::string_view kOfAll = "ranks.", kOfOne = "rank.";

// Whether "rank.N.…" names a rank, written as numbers are.
bool NamesARank(absl::string_view name, int ranks) {
  absl::ConsumePrefix(&name, kOfOne);
  const absl::string_view digits = name.substr(0, name.find('.'));
  int rank = 0;
  return digits.size() < name.size() && absl::SimpleAtoi(digits, &rank) && rank >= 0 &&
         rank < ranks && digits == absl::StrCat(rank);
}

bool IsRankNumber(double value, int ranks) {
  return value >= 0 && value < ranks && value == std::floor(value);
}

bool CanBeTrue(absl::string_view name, double value, int ranks) {
  if (!std::isfinite(value) || value < 0 || name == kRefusedRankValues) return false;
  if (absl::StartsWith(name, kOfOne)) return NamesARank(name, ranks);
  if (name == "ranks.count") return value == ranks;
  const bool is_rank = name == "ranks.slowest" || absl::EndsWith(name, "_rank");
  return !is_rank || IsRankNumber(value, ranks);
}

}  // namespace

bool TellsOfRanks(absl::string_view name) {
  return absl::StartsWith(name, kOfAll) || absl::StartsWith(name, kOfOne);
}

void RefuseRankValues(int ranks, std::map<std::string, double>& values) {
  const auto refused = std::erase_if(values, [&](const auto& value) {
    return TellsOfRanks(value.first) && !CanBeTrue(value.first, value.second, ranks);
  });
  if (refused > 0) values[kRefusedRankValues] = static_cast<double>(refused);
}

void RefuseRankValues(int ranks, MetricRun& run) {
  MetricRun kept{.split = run.split, .steps = std::move(run.steps), .times = std::move(run.times)};
  for (size_t i = 0; i < run.names.size(); ++i) {
    const std::string& name = run.names[i];
    if (TellsOfRanks(name) &&
        !std::all_of(run.values[i].begin(), run.values[i].end(),
                     [&](double value) { return CanBeTrue(name, value, ranks); })) {
      continue;
    }
    kept.names.push_back(name);
    kept.values.push_back(std::move(run.values[i]));
  }
  const size_t refused = run.names.size() - kept.names.size();
  if (refused > 0) {
    const auto place = std::lower_bound(kept.names.begin(), kept.names.end(), kRefusedRankValues);
    kept.values.emplace(kept.values.begin() + (place - kept.names.begin()), kept.steps.size(),
                        static_cast<double>(refused));
    kept.names.insert(place, kRefusedRankValues);
  }
  run = std::move(kept);
}

}  // namespace trainyard
