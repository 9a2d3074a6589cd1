#pragma once

#include "executor/worker/confine.h"

namespace trainyard::worker {

// Looks at the files of a job for a server, as the user whom its orders name
// (executor/run/orders.h, of which only user is used): reads a LookRequest from stdin, a socket, to
// its end, writes a LookAnswer, and ends. Nothing but the roots is within its reach, no network,
// and so much memory and time that a file made to take them takes nothing of the node. Returns the
// exit code.
int RunLook(const run::Roots& roots);

}  // namespace trainyard::worker
