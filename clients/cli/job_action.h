#pragma once

#include <functional>
#include <string>

#include "clients/cli/commands.h"

namespace trainyard::cli {

// A subcommand that does one thing to each of the jobs that are named, tells each new state, and
// ends with the first error's code after having tried them all. `act` gets full names.
void AddJobAction(CLI::App& root, Session& session, const std::string& command,
                  const std::string& help,
                  std::function<absl::StatusOr<v1::Job>(Client&, const std::string& name)> act);

}  // namespace trainyard::cli
