#pragma once

// Who this agent is to the server, whatever its node is called.

#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

struct Identity {
  std::string secret;  // 64 hex digits, made once, kept in the state directory
  // "BOOT:DEVICE:INODE:MACHINE": this boot of this machine, and this directory, not a copy of it.
  // MACHINE is what the hardware calls itself, as far as root may ask.
  std::string instance;
};

// Of the agent that uses `state_dir`, which exists; makes the secret where there is none. Whoever
// can read the directory can speak for the node, so the file is for its owner alone. kDataLoss:
// what is there is no secret.
absl::StatusOr<Identity> OpenIdentity(const std::string& state_dir);

}  // namespace trainyard
