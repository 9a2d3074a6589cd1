#pragma once

#include "absl/status/status.h"
#include "executor/run/orders.h"

namespace trainyard::worker {

// Makes this process, all of its threads, the user's, with nothing of what it might do before: no
// other group, no capability, no way back. Its files are for the user's group to read and nobody
// else. Call it before anything of the job is read. After an error the process must end.
absl::Status BecomeUser(const run::UnixUser& user);

// Sets these variables, and first removes those that hold the agent's own credentials and folders.
void TakeEnvironment(const run::Orders& orders);

}  // namespace trainyard::worker
