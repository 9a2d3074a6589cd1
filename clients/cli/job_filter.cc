#include "clients/cli/job_filter.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::cli {
namespace {

std::vector<std::string> StateNames() {
  std::vector<std::string> names;
  const auto& type = *v1::JobState_descriptor();
  for (int i = 1; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return names;
}

absl::StatusOr<std::set<std::string>> WantedStates(const std::vector<std::string>& states,
                                                   bool all) {
  const std::vector<std::string> names = StateNames();
  std::set<std::string> wanted;
  for (const std::string& state : states) {
    const std::string name = absl::AsciiStrToUpper(state);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--state: '", state, "' is not a state",
                                                     DidYouMean(name, names), "; expected one of ",
                                                     absl::StrJoin(names, ", ")));
    }
    wanted.insert(name);
  }
  if (!wanted.empty()) return wanted;
  wanted.insert(names.begin(), names.end());
  if (!all) {
    for (const char* ended : {"SUCCEEDED", "FAILED", "CANCELLED"}) wanted.erase(ended);
  }
  return wanted;
}

// Whether a term of the filter is about the state of jobs; not when a label or a quoted value only
// contains the word.
bool HasStateTerm(const std::string& filter) {
  const auto of_name = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; };
  bool quoted = false;
  for (size_t i = 0; i < filter.size(); ++i) {
    if (filter[i] == '"') quoted = !quoted;
    if (quoted || !of_name(filter[i])) continue;
    size_t end = i;
    while (end < filter.size() && of_name(filter[end])) ++end;
    if (filter.substr(i, end - i) == "state") return true;
    i = end - 1;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::string> BuildJobFilter(const std::vector<std::string>& states,
                                           const std::string& filter, bool all) {
  TY_ASSIGN_OR_RETURN(const std::set<std::string> wanted,
                      WantedStates(states, all || HasStateTerm(filter)));
  std::vector<std::string> terms;
  if (wanted.size() == 1) {
    terms.push_back(absl::StrCat("state = ", *wanted.begin()));
  } else {
    for (const std::string& name : StateNames()) {
      if (wanted.count(name) == 0) terms.push_back(absl::StrCat("state != ", name));
    }
  }
  if (!filter.empty()) terms.push_back(filter);
  return absl::StrJoin(terms, " AND ");
}

}  // namespace trainyard::cli
