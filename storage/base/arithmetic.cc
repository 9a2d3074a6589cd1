#include "storage/base/arithmetic.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace trainyard {
namespace {

constexpr char kBetweenValues[] = "; ";
constexpr char kAfterName[] = ": ";

// Whether it is printable ASCII without the semicolons and colons that the line is cut at.
bool IsPlain(const std::string& text) {
  if (text.empty() || text.size() > kLongestArithmeticText) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ';' && c != ':'; });
}

std::string ValueOf(const Arithmetic& arithmetic, const std::string& name) {
  const auto found = arithmetic.find(name);
  return found == arithmetic.end() ? "unknown" : found->second;
}

}  // namespace

std::string ArithmeticToText(const Arithmetic& arithmetic) {
  return absl::StrJoin(arithmetic, kBetweenValues, absl::PairFormatter(kAfterName));
}

Arithmetic ArithmeticFromText(absl::string_view text) {
  Arithmetic arithmetic;
  if (text.empty()) return arithmetic;
  for (const absl::string_view part : absl::StrSplit(text, kBetweenValues)) {
    const std::pair<std::string, std::string> value =
        absl::StrSplit(part, absl::MaxSplits(kAfterName, 1));
    if (!arithmetic.insert(value).second) return {};
    if (arithmetic.size() > kMostArithmeticValues) return {};
  }
  return IsWellFormed(arithmetic) ? arithmetic : Arithmetic();
}

bool IsWellFormed(const Arithmetic& arithmetic) {
  return arithmetic.size() <= kMostArithmeticValues &&
         std::all_of(arithmetic.begin(), arithmetic.end(), [](const auto& value) {
           return IsPlain(value.first) && IsPlain(value.second);
         });
}

Arithmetic CertainArithmetic(Arithmetic arithmetic) {
  for (const char* const name : {"caches", "glibc"}) arithmetic.erase(name);
  return arithmetic;
}

bool SameArithmetic(const Arithmetic& a, const Arithmetic& b) { return !a.empty() && a == b; }

std::string ArithmeticDifference(const Arithmetic& a, absl::string_view where_a,
                                 const Arithmetic& b, absl::string_view where_b) {
  if (a.empty() && b.empty()) {
    return absl::StrCat("unknown ", where_a, ", unknown ", where_b);
  }
  if (a.empty()) return absl::StrCat("unknown ", where_a, ", ", ArithmeticToText(b), " ", where_b);
  if (b.empty()) return absl::StrCat(ArithmeticToText(a), " ", where_a, ", unknown ", where_b);
  std::set<std::string> names;
  for (const auto& value : a) names.insert(value.first);
  for (const auto& value : b) names.insert(value.first);
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    const std::string of_a = ValueOf(a, name), of_b = ValueOf(b, name);
    if (a.count(name) == b.count(name) && of_a == of_b) continue;
    differences.push_back(
        absl::StrCat(name, kAfterName, of_a, " ", where_a, ", ", of_b, " ", where_b));
  }
  return absl::StrJoin(differences, kBetweenValues);
}

}  // namespace trainyard
