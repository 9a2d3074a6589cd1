#include "executor/data/clicks/auc.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace trainyard::data {

std::optional<double> Auc(std::vector<Scored>& scored) {
  const auto no_number = [](const Scored& s) { return std::isnan(s.score); };
  if (std::any_of(scored.begin(), scored.end(), no_number)) return std::nullopt;
  std::sort(scored.begin(), scored.end(),
            [](const Scored& a, const Scored& b) { return a.score < b.score; });
  // Twice the pairs won, so that ties stay whole; below 2^82 for 2^40 samples.
  unsigned __int128 won = 0;
  uint64_t clicks = 0, others = 0;
  for (size_t i = 0; i < scored.size();) {
    uint64_t clicks_here = 0, others_here = 0;
    const float score = scored[i].score;
    for (; i < scored.size() && scored[i].score == score; ++i) {
      ++(scored[i].click ? clicks_here : others_here);
    }
    won += static_cast<unsigned __int128>(clicks_here) * (2 * others + others_here);
    clicks += clicks_here;
    others += others_here;
  }
  if (clicks == 0 || others == 0) return std::nullopt;
  return static_cast<double>(won) /
         (2.0 * static_cast<double>(clicks) * static_cast<double>(others));
}

}  // namespace trainyard::data
