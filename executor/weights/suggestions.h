#pragma once

// Names in messages: a few of many, the nearest to a pattern, patterns that take just these.

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

// Patterns that match every one of `wanted` and none of `others`, as few as is simple, as a list of
// a job file: "['classifier.*']". Of more than eight, or for more than 200 names, the rest is
// "...".
std::string PatternsFor(const std::vector<std::string>& wanted,
                        const std::vector<std::string>& others);

}  // namespace trainyard::weights
