#pragma once

// Names in messages: a few of many, those nearest to a pattern, patterns that match only given
// names.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::weights {

// "'name'", escaped and cut to 120 bytes: names come from files.
std::string Quoted(absl::string_view name);

// "a, b, c and 4 more".
std::string FirstOf(const std::vector<std::string>& names);

// The three of `names` that are nearest to what `pattern` asks for: "'a', 'b', 'c'".
std::string NearestTo(absl::string_view pattern, const std::vector<std::string>& names);

// Few patterns, not always the fewest, that match every one of `wanted` and no other of `all`, as a
// list in a job file: "['classifier.*']". Patterns past the eighth, and those for names past the
// 200th, are left out as "...".
std::string PatternsFor(const std::vector<std::string>& wanted,
                        const std::vector<std::string>& all);

}  // namespace trainyard::weights
