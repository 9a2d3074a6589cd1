#include "executor/weights/suggestions.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "executor/plan/spec/glob.h"

namespace trainyard::weights {
namespace {

constexpr size_t kShown = 3;
constexpr size_t kMostPatterns = 8;
// Names come from files of users, so the work that a message takes is bounded.
constexpr size_t kMostCompared = 10000;
constexpr size_t kLongestCompared = 256;
constexpr size_t kMostWanted = 200;

// "a.b." of "a.b.c"; "" of "c".
absl::string_view ParentOf(absl::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == absl::string_view::npos ? "" : name.substr(0, dot + 1);
}

absl::string_view CommonStart(absl::string_view a, absl::string_view b) {
  size_t n = 0;
  while (n < std::min(a.size(), b.size()) && a[n] == b[n]) ++n;
  return a.substr(0, n);
}

bool TakesNone(const std::string& start, const std::vector<std::string>& others) {
  return !start.empty() && absl::c_none_of(others, [&](const std::string& other) {
    return absl::StartsWith(other, start);
  });
}

}  // namespace

std::string Quoted(absl::string_view name) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(name.substr(0, 120)), "'");
}

std::string FirstOf(const std::vector<std::string>& names) {
  const size_t shown = names.size() <= kShown + 1 ? names.size() : kShown;
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

std::string NearestTo(absl::string_view pattern, const std::vector<std::string>& names) {
  std::vector<std::pair<int, std::string>> near;
  for (const std::string& name : names) {
    if (name.size() > kLongestCompared) continue;
    if (near.size() == kMostCompared) break;
    near.emplace_back(plan::GlobDistance(pattern, name), name);
  }
  absl::c_stable_sort(near, [](const auto& a, const auto& b) { return a.first < b.first; });
  near.resize(std::min(near.size(), kShown));
  return absl::StrJoin(near, ", ",
                       [](std::string* out, const auto& n) { out->append(Quoted(n.second)); });
}

std::string PatternsFor(const std::vector<std::string>& wanted,
                        const std::vector<std::string>& all) {
  const absl::flat_hash_set<absl::string_view> named(wanted.begin(), wanted.end());
  std::vector<std::string> others;
  for (const std::string& name : all) {
    if (!named.contains(name)) others.push_back(name);
  }
  std::vector<std::string> patterns;
  bool complete = true;
  const auto list = [&] {
    const bool whole = complete && patterns.size() <= kMostPatterns;
    patterns.resize(std::min(patterns.size(), kMostPatterns));
    std::string text = absl::StrJoin(
        patterns, ", ", [](std::string* out, const std::string& p) { out->append(Quoted(p)); });
    return absl::StrCat("[", text, whole ? "]" : ", ...]");
  };
  if (wanted.size() > 1) {
    absl::string_view start = wanted[0];
    for (const std::string& name : wanted) start = CommonStart(start, name);
    const std::string parent(ParentOf(start));
    if (TakesNone(parent, others)) {
      patterns.push_back(parent + "*");
      return list();
    }
  }
  complete = wanted.size() <= kMostWanted;
  const absl::Span<const std::string> looked_at =
      absl::MakeConstSpan(wanted).subspan(0, kMostWanted);
  for (const std::string& name : looked_at) {
    if (patterns.size() > kMostPatterns) break;
    const std::string parent(ParentOf(name));
    if (absl::c_linear_search(patterns, parent + "*")) continue;
    const bool alone = absl::c_count_if(looked_at, [&](const std::string& other) {
                         return absl::StartsWith(other, parent);
                       }) == 1;
    std::string pattern = !alone && TakesNone(parent, others) ? parent + "*" : name;
    if (!absl::c_linear_search(patterns, pattern)) patterns.push_back(std::move(pattern));
  }
  return list();
}

}  // namespace trainyard::weights
