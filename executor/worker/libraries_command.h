#pragma once

namespace trainyard::worker {

// Prints what this program and its libraries are on this machine, a line each. Returns the exit
// code.
int RunLibraries();

}  // namespace trainyard::worker
