#pragma once

// Checks of option values, whose messages say what was found and what was expected.

#include <cstdint>

#include "CLI/CLI.hpp"

namespace trainyard::cli {

// A whole number of at least `least`.
CLI::Validator AtLeast(int64_t least);

// A span of time, or none: plain seconds or units as in 90s, 20m, 1h30m, 7d. Leaves seconds, so it
// goes to transform().
CLI::Validator Seconds();

}  // namespace trainyard::cli
