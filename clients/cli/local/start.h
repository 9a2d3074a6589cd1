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
  // What the user said; the rest comes from the yard as it was, else from defaults.
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
// still runs. The context is saved and made the current one. A failure carries the last lines of
// the log that explains it, and leaves nothing running.
absl::StatusOr<StartedYard> StartYard(const StartOptions& options);

// Why a yard is not ready, or OK: one try, by the API.
absl::Status CheckReady(const Yard& yard, const YardConfig& config);

}  // namespace trainyard::cli
