#pragma once

namespace trainyard::worker {

// Prints the versions of the libraries that this program finds on this machine, one per line.
// Returns the exit code.
int RunLibraries();

}  // namespace trainyard::worker
