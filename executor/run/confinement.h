#pragma once

// How an agent tells a worker, when it starts it, what the kernel is to keep from it. By the
// environment, which a worker of before passes over: it runs as it did, but for ranks that must be
// confined, whose orders it does not take (orders.h).

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard::run {

inline constexpr char kConfinementVariable[] = "TRAINYARD_CONFINEMENT";

// Where data lies, and where checkpoints go. Neither: files are for the user's rights alone to
// decide.
struct Roots {
  std::vector<std::string> data, checkpoints;
  bool empty() const { return data.empty() && checkpoints.empty(); }
};

// The variable's value.
std::string FormatConfinement(const Roots& roots);

// nullopt: there is no variable, so nothing is kept from the worker. kInvalidArgument: it cannot be
// read.
absl::StatusOr<std::optional<Roots>> ParseConfinement(const char* value);

}  // namespace trainyard::run
