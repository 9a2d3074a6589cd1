#pragma once

// Patterns over names: * is any run of characters, ? is one, everything else is itself.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::plan {

// Whether `pattern` matches the whole of `name`.
bool GlobMatches(absl::string_view pattern, absl::string_view name);

// The fewest characters to insert, delete or replace in `name` before `pattern` matches it.
int GlobDistance(absl::string_view pattern, absl::string_view name);

// "'a', 'b', 'c'": those of `names` that are nearest to what `pattern` asks for, at most three.
std::string NearestNames(absl::string_view pattern, const std::vector<std::string>& names);

}  // namespace trainyard::plan
