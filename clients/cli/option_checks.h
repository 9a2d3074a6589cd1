#pragma once

// Checks of option values, whose messages say what was found and what was expected.

#include <cstdint>

#include "CLI/CLI.hpp"

namespace trainyard::cli {

// A whole number of at least `least`.
CLI::Validator AtLeast(int64_t least);

// A span of time, zero included: plain seconds, or units as in 90s, 20m, 1h30m, 7d. It replaces the
// text by the number of seconds, so it must be given to transform() and not to check().
CLI::Validator Seconds();

// A number above 0, in units as in 1.5e9, 40T, 12.5G (thousands, not 1,024). It replaces the text
// by the number, so it must be given to transform().
CLI::Validator Rate();

}  // namespace trainyard::cli
