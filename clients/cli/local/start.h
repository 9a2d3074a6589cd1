#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/cli/local/yard.h"

namespace trainyard::cli {

struct StartOptions {
  std::string dir;
  // What the user gave; the rest is as the yard was configured before, else the default.
  std::optional<int> port;
  std::optional<int> cpu_slots;
  std::optional<int> threads_per_slot;
  std::string context;
  absl::Duration timeout = absl::Seconds(60);
};

struct StartedYard {
  YardConfig config;
  bool was_running = false;
};

// Brings a yard up and waits until its server answers and its node is READY. Idempotent: a yard
// that runs is only waited for; one whose supervisor was killed gets a new one, which adopts what
// still runs. The context is saved and made the current one. A yard that this call started and that
// does not become ready is stopped; the error carries the last lines of the log that explains it.
absl::StatusOr<StartedYard> StartYard(const StartOptions& options);

// Asks the server once, through the API: OK if a node is READY, else why the yard is not ready.
absl::Status CheckReady(const Yard& yard, const YardConfig& config);

}  // namespace trainyard::cli
