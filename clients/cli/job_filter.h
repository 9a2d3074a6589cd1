#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard::cli {

// The server's filter for `ps`: `states` (any of them; case-insensitive), and `filter` as the user
// wrote it. Without states and without `all` jobs that ended are left out, unless `filter` speaks
// of states. The server knows AND only, so a set of states is written as what it excludes.
absl::StatusOr<std::string> BuildJobFilter(const std::vector<std::string>& states,
                                           const std::string& filter, bool all);

}  // namespace trainyard::cli
