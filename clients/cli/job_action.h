#pragma once

#include <functional>
#include <string>

#include "clients/cli/commands.h"

namespace trainyard::cli {

// Adds a subcommand that calls `act` with the full name of each job that the user names, and prints
// the job's new state. All jobs are tried; the exit code is that of the first error, or 0.
// Returns the subcommand, for options of its own.
CLI::App* AddJobAction(
    CLI::App& root, Session& session, const std::string& command, const std::string& help,
    std::function<absl::StatusOr<v1::Job>(Client&, const std::string& name)> act);

// The action that makes the call `method` with the name of the job.
template <typename Request>
auto CallWithName(absl::StatusOr<v1::Job> (Client::*method)(const Request&)) {
  return [method](Client& client, const std::string& name) {
    Request request;
    request.set_name(name);
    return (client.*method)(request);
  };
}

}  // namespace trainyard::cli
