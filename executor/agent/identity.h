#pragma once

// Who this agent is to the server, whatever its node is called.

#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

struct Identity {
  std::string secret;  // 64 hex digits, made once, kept in the state directory
  // "BOOT:DEVICE:INODE:MACHINE": this boot of this machine, and this directory, not a copy of it.
  // MACHINE is the UUID of the hardware; empty when the agent may not read it (only root may).
  std::string instance;
};

// The identity of the agent that uses `state_dir`, which exists; makes the secret if there is none.
// Whoever can read the secret can speak for the node, so only the file's owner may read it.
// kDataLoss: the file holds no secret.
absl::StatusOr<Identity> OpenIdentity(const std::string& state_dir);

}  // namespace trainyard
