#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard::cli {

// The server's filter for `ps`: `states` (any of them; case-insensitive), and `filter` as the user
// wrote it. Without `states` and `all`, jobs that ended are left out, unless `filter` contains the
// word "state". The server's filters have AND but no OR, so several states are written as the
// exclusion of all others.
absl::StatusOr<std::string> BuildJobFilter(const std::vector<std::string>& states,
                                           const std::string& filter, bool all);

}  // namespace trainyard::cli
