#pragma once

// What an operator lets the jobs of one project know, such as its credentials for an object store.

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

// The variables of `ours`, NAME=VALUE each, whose name begins with "AWS_".
std::map<std::string, std::string> OwnCredentials(const char* const* ours);

// The variables in {folder}/{project}.env, a line NAME=VALUE each, where NAME begins with "AWS_";
// lines that begin with '#' and empty ones count for nothing. nullopt: there is no such file.
//   kPermissionDenied  others than its owner may read it, or its owner is neither root nor this
//   user kInvalidArgument   a line is not one of those; names the line, and not what is in it
absl::StatusOr<std::optional<std::map<std::string, std::string>>> ReadProjectEnvironment(
    const std::string& folder, const std::string& job_name);

}  // namespace trainyard
