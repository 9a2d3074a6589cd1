#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/local/yard.h"

namespace trainyard::cli {

// The parts with their stop signals and nothing else: stopping needs no installed programs.
std::vector<Part> StopSignalsOnly();

// Ends every process of a yard, supervised or not; with `purge` its folder, socket and contexts,
// too. True when anything ran. kNotFound: no yard there.
absl::StatusOr<bool> StopYard(const Yard& yard, bool purge);

}  // namespace trainyard::cli
