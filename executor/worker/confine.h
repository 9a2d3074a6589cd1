#pragma once

// What the kernel keeps a worker from doing, whatever becomes of it: a file that is read may be
// made to take a parser over. Two steps: at its start, before there is a second thread, and once it
// knows its rank.

#include "absl/status/status.h"
#include "executor/run/confinement.h"

namespace trainyard::worker {

// The first step, in the folder that will be the rank's: no new privileges, no core file, of files
// only the roots, this folder and what programs need, and no calls that only attackers make: to
// trace others, to mount, to load programs into the kernel. kUnimplemented: this kernel cannot
// enforce it.
absl::Status Confine(const run::Roots& roots);

// The second one, for all threads: no other program and no other process. Call it after the device
// was opened, if it was opened beforehand.
absl::Status ConfineToOneProcess();

// No new socket, for all threads.
absl::Status ConfineToNoNetwork();

}  // namespace trainyard::worker
