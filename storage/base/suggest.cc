#include "storage/base/suggest.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace trainyard {

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string DidYouMean(absl::string_view found, const std::vector<std::string>& candidates) {
  if (found.size() > 100) return "";
  // A third of the characters may be wrong, as in git's and clang's suggestions.
  const int allowed = std::max<int>(1, static_cast<int>(found.size()) / 3);
  int best = allowed + 1;
  const std::string* choice = nullptr;
  for (const std::string& c : candidates) {
    const int distance = EditDistance(found, c);
    if (distance < best) {
      best = distance;
      choice = &c;
    }
  }
  return choice == nullptr ? "" : absl::StrCat(" (did you mean '", *choice, "'?)");
}

}  // namespace trainyard
