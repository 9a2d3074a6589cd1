#include "executor/plan/spec/glob.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard::plan {

bool GlobMatches(absl::string_view pattern, absl::string_view name) {
  size_t p = 0, n = 0;
  size_t star = absl::string_view::npos, taken = 0;  // the last *, and where what it takes ends
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

int GlobDistance(absl::string_view pattern, absl::string_view name) {
  // Wagner & Fischer 1974, a row per character of the pattern; what a * takes costs nothing.
  std::vector<int> above(name.size() + 1), row(name.size() + 1);
  for (size_t n = 0; n <= name.size(); ++n) above[n] = static_cast<int>(n);
  for (const char c : pattern) {
    row[0] = above[0] + (c == '*' ? 0 : 1);
    for (size_t n = 1; n <= name.size(); ++n) {
      if (c == '*') {
        row[n] = std::min(above[n], row[n - 1]);
      } else {
        const int replace = above[n - 1] + (c == '?' || c == name[n - 1] ? 0 : 1);
        row[n] = std::min({above[n] + 1, row[n - 1] + 1, replace});
      }
    }
    std::swap(above, row);
  }
  return above[name.size()];
}

std::string NearestNames(absl::string_view pattern, const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  std::vector<std::pair<int, std::string>> near;
  near.reserve(names.size());
  for (const std::string& name : names) {
    near.emplace_back(GlobDistance(pattern, name), absl::StrCat("'", name, "'"));
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  near.resize(std::min(near.size(), kMost));
  return absl::StrJoin(near, ", ", [](std::string* out, const auto& n) { out->append(n.second); });
}

}  // namespace trainyard::plan
