#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard {

// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`
// (Damerau-Levenshtein, optimal string alignment).
int EditDistance(absl::string_view a, absl::string_view b);

// " (did you mean 'batch_size'?)" when a candidate is near enough to `found`, else "".
std::string DidYouMean(absl::string_view found, const std::vector<std::string>& candidates);

}  // namespace trainyard
