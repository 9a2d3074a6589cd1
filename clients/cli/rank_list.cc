#include "clients/cli/rank_list.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace trainyard::cli {
namespace {

constexpr int kMostRanks = 1 << 16;
constexpr size_t kLongestLine = 64 << 10;

absl::Status NoList(const std::string& text) {
  return absl::InvalidArgumentError(
      absl::StrCat("--rank: found '", text, "', expected a rank, ranks as in 0,4-7, or all"));
}

}  // namespace

absl::StatusOr<RankList> ParseRankList(const std::string& text) {
  if (text == "all") return RankList{.all = true};
  std::set<int> ranks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last >= kMostRanks) {
      return NoList(text);
    }
    for (int rank = first; rank <= last; ++rank) ranks.insert(rank);
  }
  return RankList{.ranks = {ranks.begin(), ranks.end()}};
}

absl::StatusOr<std::vector<int>> RanksOf(const RankList& list, int count) {
  std::vector<int> ranks = list.ranks;
  for (int rank = 0; list.all && rank < count; ++rank) ranks.push_back(rank);
  if (!ranks.empty() && ranks.back() >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: found ", ranks.back(), ", and the attempt has ", count,
                     count == 1 ? " rank: 0" : absl::StrCat(" ranks, 0 to ", count - 1)));
  }
  return ranks;
}

RankLines::RankLines(int rank) : prefix_(absl::StrCat("[", rank, "] ")) {}

std::string RankLines::Add(const std::string& data) {
  std::string out;
  size_t from = 0;
  for (size_t end = data.find('\n'); end != std::string::npos; end = data.find('\n', from)) {
    absl::StrAppend(&out, prefix_, std::exchange(begun_, ""), data.substr(from, end + 1 - from));
    from = end + 1;
  }
  begun_.append(data, from);
  if (begun_.size() >= kLongestLine) out += Rest();
  return out;
}

std::string RankLines::Rest() {
  return begun_.empty() ? "" : absl::StrCat(prefix_, std::exchange(begun_, ""), "\n");
}

}  // namespace trainyard::cli
