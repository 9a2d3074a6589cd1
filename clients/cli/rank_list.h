#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard::cli {

// Ranks as a user names them.
struct RankList {
  bool all = false;
  std::vector<int> ranks;  // ascending, each once; empty if all
};

// "3", "0,4-7" or "all"; kInvalidArgument names the option --rank.
absl::StatusOr<RankList> ParseRankList(const std::string& text);

// The ranks that are meant, of `count`. kInvalidArgument: one of them is not there.
absl::StatusOr<std::vector<int>> RanksOf(const RankList& list, int count);

// Cuts what a rank prints into lines with its number in front: "[3] loss is 2.1".
class RankLines {
 public:
  explicit RankLines(int rank);

  // The lines that end with `data`; the beginning of another one is kept, up to 64 KiB.
  std::string Add(const std::string& data);
  // What is left of the last line.
  std::string Rest();

 private:
  const std::string prefix_;
  std::string begun_;
};

}  // namespace trainyard::cli
